"""Group `payable-orders`: payments learns which orders can be paid, and which no longer."""

from __future__ import annotations

from payments.service import events
from payments.service.payable_orders import PayableOrders
from servicekit.subscription import Subscription

TAGS = f"{events.CREATED_TAG} || {events.CLOSED_TAG} || {events.PAID_TAG}"


def payable_orders(orders: PayableOrders) -> Subscription:
    """Reads `order-events`."""

    async def handle(body: bytes) -> None:
        await orders.learn(events.read_order_event(body))

    return Subscription(events.PAYABLE_ORDERS_GROUP, events.ORDER_EVENTS_TOPIC, TAGS, handle)

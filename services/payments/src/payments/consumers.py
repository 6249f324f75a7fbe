"""What payments reads from the queue: one subscription for each group."""

from __future__ import annotations

from payments.service import events
from payments.service.payable_orders import PayableOrders
from payments.service.refund_payment import RefundPayment
from servicekit.message import Subscription

# ----------------------------------------------------------------------------------------------------------------------
# Group `payable-orders`: payments learns which orders can be paid, and which no longer.


TAGS = f"{events.CREATED_TAG} || {events.CLOSED_TAG} || {events.PAID_TAG}"


def payable_orders(orders: PayableOrders) -> Subscription:
    """Reads `order-events`."""

    async def handle(body: bytes) -> None:
        await orders.learn(events.read_order_event(body))

    return Subscription(events.PAYABLE_ORDERS_GROUP, events.ORDER_EVENTS_TOPIC, TAGS, handle)


# ----------------------------------------------------------------------------------------------------------------------
# Group `refund-handler`: money of an order that is closed goes back.


def refund_handler(refund_payment: RefundPayment) -> Subscription:
    """Reads `order-events`/`refund-requested`."""

    async def handle(body: bytes) -> None:
        await refund_payment(events.read_refund_requested(body))

    return Subscription(events.REFUND_HANDLER_GROUP, events.ORDER_EVENTS_TOPIC, events.REFUND_REQUESTED_TAG, handle)

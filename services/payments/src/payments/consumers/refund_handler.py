"""Group `refund-handler`: money of an order that is closed goes back."""

from __future__ import annotations

from payments.service import events
from payments.service.refund_payment import RefundPayment
from servicekit.subscription import Subscription


def refund_handler(refund_payment: RefundPayment) -> Subscription:
    """Reads `order-events`/`refund-requested`."""

    async def handle(body: bytes) -> None:
        await refund_payment(events.read_refund_requested(body))

    return Subscription(events.REFUND_HANDLER_GROUP, events.ORDER_EVENTS_TOPIC, events.REFUND_REQUESTED_TAG, handle)

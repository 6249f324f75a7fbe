"""Group `order-refund-handler`: an order whose money went back before it was shipped is closed.

A group of its own: members of an older version of `order-payment-handler` do not want this tag, and all members of a
group want the same.
"""

from __future__ import annotations

from orders.service import events
from orders.service.accept_refund import AcceptRefund
from servicekit.subscription import Subscription


def refund_handler(accept_refund: AcceptRefund) -> Subscription:
    """Reads `payment-events`/`refunded`."""

    async def handle(body: bytes) -> None:
        await accept_refund(events.read_refunded(body))

    return Subscription(events.REFUND_HANDLER_GROUP, events.PAYMENT_EVENTS_TOPIC, events.REFUNDED_TAG, handle)

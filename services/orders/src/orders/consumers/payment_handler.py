"""Group `order-payment-handler`: a payment that succeeded pays its order, or goes back."""

from __future__ import annotations

from orders.service import events
from orders.service.accept_payment import AcceptPayment
from servicekit.subscription import Subscription


def payment_handler(accept_payment: AcceptPayment) -> Subscription:
    """Reads `payment-events`/`succeeded`."""

    async def handle(body: bytes) -> None:
        await accept_payment(events.read_payment(body))

    return Subscription(events.PAYMENT_HANDLER_GROUP, events.PAYMENT_EVENTS_TOPIC, events.SUCCEEDED_TAG, handle)

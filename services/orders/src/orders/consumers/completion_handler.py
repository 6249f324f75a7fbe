"""Group `order-completion-handler`: a timer that comes back completes its order, if the buyer has not."""

from __future__ import annotations

from orders.service import events
from orders.service.complete_order import CompleteOrder
from servicekit.subscription import Subscription


def completion_handler(complete_order: CompleteOrder) -> Subscription:
    """Reads `order-completions`."""

    async def handle(body: bytes) -> None:
        await complete_order.ring(events.read_shipped(body).order_id)

    return Subscription(events.COMPLETION_HANDLER_GROUP, events.ORDER_COMPLETIONS_TOPIC, "*", handle)

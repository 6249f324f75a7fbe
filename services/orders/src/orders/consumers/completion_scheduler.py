"""Group `order-completion-scheduler`: every shipped order gets the timer that completes it."""

from __future__ import annotations

from orders.service import events
from orders.service.complete_order import CompleteOrder
from servicekit.subscription import Subscription


def completion_scheduler(complete_order: CompleteOrder) -> Subscription:
    """Reads `order-events`/`shipped`, sends `order-completions` for the time at which the order completes."""

    async def handle(body: bytes) -> None:
        shipped = events.read_shipped(body)
        await complete_order.schedule(shipped.order_id, shipped.shipped_at_ms)

    return Subscription(events.COMPLETION_SCHEDULER_GROUP, events.ORDER_EVENTS_TOPIC, events.SHIPPED_TAG, handle)

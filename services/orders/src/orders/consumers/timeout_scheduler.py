"""Group `order-timeout-scheduler`: every created order gets its timer."""

from __future__ import annotations

from orders.service import events
from orders.service.order_timeouts import OrderTimeouts
from servicekit.subscription import Subscription


def timeout_scheduler(timeouts: OrderTimeouts) -> Subscription:
    """Reads `order-events`/`created`, sends `order-timeouts` with the delay level of the time that remains."""

    async def handle(body: bytes) -> None:
        await timeouts.schedule(events.read_deadline(body))

    return Subscription(events.TIMEOUT_SCHEDULER_GROUP, events.ORDER_EVENTS_TOPIC, events.CREATED_TAG, handle)

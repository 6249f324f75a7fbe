"""Group `order-timeout-handler`: a timer that comes back closes its order, if nobody has paid."""

from __future__ import annotations

from orders.service import events
from orders.service.order_timeouts import OrderTimeouts
from servicekit.subscription import Subscription


def timeout_handler(timeouts: OrderTimeouts) -> Subscription:
    """Reads `order-timeouts`."""

    async def handle(body: bytes) -> None:
        await timeouts.ring(events.read_deadline(body))

    return Subscription(events.TIMEOUT_HANDLER_GROUP, events.ORDER_TIMEOUTS_TOPIC, "*", handle)

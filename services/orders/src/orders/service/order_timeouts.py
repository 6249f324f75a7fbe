"""The timer of every order: a delayed message that comes back when the time to pay is over (MISSION X3, U5).

Both handlers may be called again with the same message: a second timer finds the order decided and ignores it.
"""

from __future__ import annotations

import structlog

from orders.domain.delay_levels import DelayLevels
from orders.service import events
from orders.service.close_order import CloseOrder, ExpiryOutcome
from orders.service.events import OrderDeadline
from osenv import Clock
from servicekit.message import MessagePublisher

LOOK_AGAIN_MS = 5_000  # at an order whose payment is in progress

log = structlog.get_logger(__name__)


class OrderTimeouts:
    """Sets timers and acts on those that ring."""

    def __init__(self, close_order: CloseOrder, publisher: MessagePublisher, clock: Clock, levels: DelayLevels) -> None:
        self._close_order = close_order
        self._publisher = publisher
        self._clock = clock
        self._levels = levels

    async def schedule(self, deadline: OrderDeadline) -> int:
        """Send the order's timer for the time that remains; returns the delay level. Raises PublishError."""
        return await self._send(deadline, deadline.expires_at_ms - self._clock.wall_ms())

    async def ring(self, deadline: OrderDeadline) -> ExpiryOutcome:
        """Close the order if it is due and unpaid; a timer that rings early is sent again for the rest.

        So is one that finds the order held by a payment in progress: it rings every few seconds until that has ended.

        Raises PublishError or StorageUnavailableError; the message must then be delivered again.
        """
        outcome = await self._close_order.expire(deadline.order_id)
        if outcome is ExpiryOutcome.TOO_EARLY:
            await self.schedule(deadline)
        elif outcome is ExpiryOutcome.HELD:
            await self._send(deadline, LOOK_AGAIN_MS)
        elif outcome is ExpiryOutcome.UNKNOWN_ORDER:
            # Orders are never deleted: this is a message of another database, or a lost one.
            log.warning("the timeout of an unknown order is ignored", order_id=deadline.order_id)
        return outcome

    async def _send(self, deadline: OrderDeadline, remaining_ms: int) -> int:
        level = self._levels.choose(remaining_ms)
        await self._publisher.publish(events.timeout(deadline, level))
        return level

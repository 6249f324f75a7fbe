"""Completing an order by itself, some days after it was shipped: by a delayed message, as closing is.

Invariants: no order completes by itself before shipped_at_ms + completion_after_ms, whatever a message says; a message
that comes early is sent again for the rest, one that comes again finds the order completed and is ignored. The queue
keeps a message for 40 days at most: a longer time is made of several messages.
"""

from __future__ import annotations

import enum

import structlog

from orders.domain.errors import StatusChangedError, UnknownOrderError
from orders.domain.order import ChangeReason, Order, OrderStatus
from orders.service import events
from orders.service.order_access import origin_of
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock
from servicekit.errors import ConsumedBeforeError
from servicekit.message import MessagePublisher
from servicekit.sql.units import TransactionalPublisher, require_first

# mqclient delivers in 40 days at most, counted by the broker's clock: a day is left for clocks that disagree.
DELIVER_AFTER_MAX_MS = 39 * 86_400_000

log = structlog.get_logger(__name__)


class CompletionOutcome(enum.Enum):
    """What became of an order whose completion message arrived."""

    COMPLETED = "completed"
    TOO_EARLY = "too early"
    ALREADY_COMPLETED = "already completed"
    NOT_SHIPPED = "not shipped"
    UNKNOWN_ORDER = "unknown order"


class CompleteOrder:
    """Sets the timer of a shipped order, and acts on those that ring."""

    def __init__(
        self,
        units: Units,
        transactions: TransactionalPublisher[UnitOfWork],
        publisher: MessagePublisher,
        clock: Clock,
        completion_after_ms: int,
    ) -> None:
        self._units = units
        self._transactions = transactions
        self._publisher = publisher
        self._clock = clock
        self._completion_after_ms = completion_after_ms

    async def schedule(self, order_id: str, shipped_at_ms: int) -> None:
        """Send the order's timer. Raises PublishError."""
        due_at_ms = shipped_at_ms + self._completion_after_ms
        deliver_at_ms = min(due_at_ms, self._clock.wall_ms() + DELIVER_AFTER_MAX_MS)
        await self._publisher.publish(events.completion(order_id, shipped_at_ms, deliver_at_ms))

    async def ring(self, order_id: str) -> CompletionOutcome:
        """Complete the order if it is shipped and its time has come; a timer that rings early is sent again.

        Raises PublishError, TransactionGivenUpError, StorageUnavailableError; the message must then come again.
        """
        async with self._units.looking() as unit:
            try:
                order = await unit.orders.get(order_id)
            except UnknownOrderError:
                # Orders are never deleted: this is a message of another database, or a lost one.
                log.warning("the completion of an unknown order is ignored", order_id=order_id)
                return CompletionOutcome.UNKNOWN_ORDER
        if order.status is OrderStatus.COMPLETED:
            return CompletionOutcome.ALREADY_COMPLETED
        if order.status is not OrderStatus.SHIPPED or order.shipped_at_ms is None:
            log.warning("the completion of an order that is not shipped is ignored", order_id=order_id)
            return CompletionOutcome.NOT_SHIPPED
        if self._clock.wall_ms() < order.shipped_at_ms + self._completion_after_ms:
            await self.schedule(order_id, order.shipped_at_ms)
            return CompletionOutcome.TOO_EARLY
        return await self._complete(order)

    async def _complete(self, order: Order) -> CompletionOutcome:
        origin = origin_of(events.COMPLETION_HANDLER_GROUP, self._clock, order)
        completed, change = order.changed(ChangeReason.COMPLETED_AUTOMATICALLY, origin)

        async def write(unit: UnitOfWork) -> None:
            await require_first(unit.inbox, events.COMPLETION_HANDLER_GROUP, order.order_id, origin.at_ms)
            await unit.orders.change_status(completed, change)

        try:
            await self._transactions.publish(events.completed(completed, change), write)
        except ConsumedBeforeError:  # by another delivery, since the order was read
            return CompletionOutcome.ALREADY_COMPLETED
        except StatusChangedError:  # its buyer has confirmed it, or a payment has let it go
            return await self.ring(order.order_id)
        return CompletionOutcome.COMPLETED

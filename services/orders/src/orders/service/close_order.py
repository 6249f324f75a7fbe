"""Closing an order that is not paid: because its buyer cancelled it, or because its time is over.

Invariants: an order is closed once, by whoever changes its status first; its units go back on sale in the same unit of
work, and `closed` is told exactly for the changes that were committed. No order is expired before expires_at_ms.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable

from orders.domain.errors import StatusChangedError, UnknownOrderError
from orders.domain.order import Order
from orders.domain.order_status import ChangeReason, OrderStatus
from orders.service import events
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock
from servicekit.errors import ConsumedBeforeError
from servicekit.inbox import require_first
from servicekit.transactions import TransactionalPublisher


class ExpiryOutcome(enum.Enum):
    """What became of an order whose timeout arrived."""

    CLOSED = "closed"
    TOO_EARLY = "too early"
    ALREADY_DECIDED = "already decided"
    UNKNOWN_ORDER = "unknown order"


async def _go_on(_unit: UnitOfWork) -> None:
    """Nothing comes first."""


class CloseOrder:
    """The use cases behind POST /orders/{id}/cancel and behind the timeout message."""

    def __init__(self, units: Units, transactions: TransactionalPublisher[UnitOfWork], clock: Clock) -> None:
        self._units = units
        self._transactions = transactions
        self._clock = clock

    async def cancel(self, order_id: str) -> Order:
        """Close the order for its buyer.

        Raises UnknownOrderError, IllegalTransitionError, StatusChangedError, PublishError, TransactionGivenUpError,
        StorageUnavailableError.
        """
        async with self._units.reading() as unit:
            order = await unit.orders.get(order_id)
        return await self.close(order, ChangeReason.CANCELLED, self._clock.wall_ms())

    async def expire(self, order_id: str) -> ExpiryOutcome:
        """Close the order if it still waits for its payment and its time is over; calling it again is harmless.

        Raises PublishError, TransactionGivenUpError, StorageUnavailableError.
        """
        async with self._units.reading() as unit:
            try:
                order = await unit.orders.get(order_id)
            except UnknownOrderError:
                return ExpiryOutcome.UNKNOWN_ORDER
        if order.status is not OrderStatus.PENDING_PAYMENT:
            return ExpiryOutcome.ALREADY_DECIDED
        now_ms = self._clock.wall_ms()
        if not order.is_due(now_ms):
            return ExpiryOutcome.TOO_EARLY

        async def consume(unit: UnitOfWork) -> None:
            await require_first(unit.inbox, events.TIMEOUT_HANDLER_GROUP, order_id, now_ms)

        try:
            await self.close(order, ChangeReason.EXPIRED, now_ms, first=consume)
        except (ConsumedBeforeError, StatusChangedError):
            return ExpiryOutcome.ALREADY_DECIDED
        return ExpiryOutcome.CLOSED

    async def close(
        self,
        order: Order,
        reason: ChangeReason,
        now_ms: int,
        *,
        first: Callable[[UnitOfWork], Awaitable[None]] = _go_on,
    ) -> Order:
        """Close `order` as it was read, after `first` in the same unit; what that raises closes nothing.

        Raises IllegalTransitionError, or StatusChangedError if the order has left the status that it was read in.
        """
        closed_order, change = order.changed(reason, now_ms)

        async def write(unit: UnitOfWork) -> None:
            await first(unit)
            if not await unit.orders.change_status(closed_order, change):
                raise StatusChangedError(order.order_id)
            for line in order.lines_by_product():
                await unit.products.release(line.product_id, line.quantity)

        await self._transactions.publish(events.closed(closed_order, change), write)
        return closed_order

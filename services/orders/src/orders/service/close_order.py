"""Closing an order that is not paid: because its buyer cancelled it, or because its time is over.

Invariants: an order is closed once, by whoever changes its status first; its units go back on sale in the same unit of
work, and `closed` is told exactly for the changes that were committed. No order is expired before expires_at_ms.
"""

from __future__ import annotations

import enum

from orders.domain.errors import StatusChangedError, UnknownOrderError
from orders.domain.order import Order
from orders.domain.order_status import ChangeReason, OrderStatus
from orders.service import events
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock


class ExpiryOutcome(enum.Enum):
    """What became of an order whose timeout arrived."""

    CLOSED = "closed"
    TOO_EARLY = "too early"
    ALREADY_DECIDED = "already decided"
    UNKNOWN_ORDER = "unknown order"


class CloseOrder:
    """The use cases behind POST /orders/{id}/cancel and behind the timeout message."""

    def __init__(self, units: Units, clock: Clock) -> None:
        self._units = units
        self._clock = clock

    async def cancel(self, order_id: str) -> Order:
        """Close the order for its buyer. Raises UnknownOrderError, IllegalTransitionError, StatusChangedError."""
        async with self._units.writing() as unit:
            order = await unit.orders.get(order_id)
            order = await close(unit, order, ChangeReason.CANCELLED, self._clock.wall_ms())
            await unit.commit()
        return order

    async def expire(self, order_id: str) -> ExpiryOutcome:
        """Close the order if it still waits for its payment and its time is over; calling it again is harmless."""
        async with self._units.writing() as unit:
            try:
                order = await unit.orders.get(order_id)
            except UnknownOrderError:
                return ExpiryOutcome.UNKNOWN_ORDER
            if order.status is not OrderStatus.PENDING_PAYMENT:
                return ExpiryOutcome.ALREADY_DECIDED
            now_ms = self._clock.wall_ms()
            if not order.is_due(now_ms):
                return ExpiryOutcome.TOO_EARLY
            try:
                await close(unit, order, ChangeReason.EXPIRED, now_ms)
            except StatusChangedError:
                return ExpiryOutcome.ALREADY_DECIDED
            await unit.commit()
        return ExpiryOutcome.CLOSED


async def close(unit: UnitOfWork, order: Order, reason: ChangeReason, now_ms: int) -> Order:
    """Close `order` within `unit`; the caller commits.

    Raises IllegalTransitionError, or StatusChangedError if the order is no longer in the status that it was read in.
    """
    closed_order, change = order.changed(reason, now_ms)
    if not await unit.orders.change_status(change):
        raise StatusChangedError(order.order_id)
    for line in sorted(order.lines, key=lambda line: line.product_id):
        await unit.products.release(line.product_id, line.quantity)
    await unit.outbox.add(events.closed(closed_order, change), now_ms)
    return closed_order

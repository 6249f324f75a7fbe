"""Shipping an order that is paid.

Invariant: an order is shipped or cancelled, never both: both change it from AWAITING_SHIPMENT by compare-and-set.
"""

from __future__ import annotations

from orders.domain.order import Order
from orders.domain.order_status import ChangeReason
from orders.service import events
from orders.service.order_access import find_visible, lost_races_as_mismatch, origin_of, require_version
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock
from servicekit.auth import Caller
from servicekit.transactions import TransactionalPublisher


class ShipOrder:
    """The use case behind POST /orders/{id}/ship; whether the caller may ship at all is asked there."""

    def __init__(self, units: Units, transactions: TransactionalPublisher[UnitOfWork], clock: Clock) -> None:
        self._units = units
        self._transactions = transactions
        self._clock = clock

    async def __call__(self, order_id: str, caller: Caller, version: int | None = None) -> Order:
        """The order, on its way to its buyer.

        Raises UnknownOrderError, VersionMismatchError, IllegalTransitionError, StatusChangedError, PublishError,
        TransactionGivenUpError, StorageUnavailableError.
        """
        async with self._units.looking() as unit:
            order = await find_visible(unit.orders, order_id, caller)
        require_version(order, version)
        shipped, change = order.changed(ChangeReason.SHIPPED, origin_of(caller.subject, self._clock))

        async def write(unit: UnitOfWork) -> None:
            await unit.orders.change_status(shipped, change)

        with lost_races_as_mismatch(order_id, version):
            await self._transactions.publish(events.shipped(shipped), write)
        return shipped

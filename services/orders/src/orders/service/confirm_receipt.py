"""The buyer has received the order: it is completed, and what is completed stays so."""

from __future__ import annotations

from orders.domain.order import Order
from orders.domain.order_status import ChangeReason
from orders.service import events
from orders.service.order_access import (
    find_visible,
    lost_races_as_mismatch,
    origin_of,
    require_buyer,
    require_version,
)
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock
from servicekit.auth import Caller
from servicekit.transactions import TransactionalPublisher


class ConfirmReceipt:
    """The use case behind POST /orders/{id}/confirm."""

    def __init__(self, units: Units, transactions: TransactionalPublisher[UnitOfWork], clock: Clock) -> None:
        self._units = units
        self._transactions = transactions
        self._clock = clock

    async def __call__(self, order_id: str, caller: Caller, version: int | None = None) -> Order:
        """The completed order. Only its buyer confirms, whatever else a caller may do.

        Raises UnknownOrderError, VersionMismatchError, IllegalTransitionError, StatusChangedError, PublishError,
        TransactionGivenUpError, StorageUnavailableError.
        """
        async with self._units.looking() as unit:
            order = await find_visible(unit.orders, order_id, caller)
        require_buyer(order, caller)
        require_version(order, version)
        completed, change = order.changed(ChangeReason.RECEIVED, origin_of(caller.subject, self._clock))

        async def write(unit: UnitOfWork) -> None:
            await unit.orders.change_status(completed, change)

        with lost_races_as_mismatch(order_id, version):
            await self._transactions.publish(events.completed(completed, change), write)
        return completed

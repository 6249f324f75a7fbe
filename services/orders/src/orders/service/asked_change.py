"""A change of an order that one of its people asks for: read, decided by the domain, written and told in one piece.

Invariant: of two changes that are asked for at once exactly one gets the order, by compare-and-set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from orders.domain.order import Order
from orders.domain.order_status import ChangeReason
from orders.domain.status_change import StatusChange
from orders.service.order_access import find_visible, lost_races_as_mismatch, origin_of, require_version
from orders.service.order_trace import in_trace_of
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock
from servicekit.auth import Caller
from servicekit.message import OutgoingMessage
from servicekit.transactions import TransactionalPublisher


class AskedChange(ABC):
    """A use case that changes nothing but the order's status."""

    reason: ClassVar[ChangeReason]
    what: ClassVar[str]  # the name of its span

    def __init__(self, units: Units, transactions: TransactionalPublisher[UnitOfWork], clock: Clock) -> None:
        self._units = units
        self._transactions = transactions
        self._clock = clock

    async def __call__(self, order_id: str, caller: Caller, version: int | None = None) -> Order:
        """The order after the change.

        Raises UnknownOrderError, VersionMismatchError, IllegalTransitionError, StatusChangedError, PublishError,
        TransactionGivenUpError, StorageUnavailableError.
        """
        async with self._units.looking() as unit:
            order = await find_visible(unit.orders, order_id, caller)
        self.require_allowed(order, caller)
        require_version(order, version)
        with in_trace_of(order, self.what), lost_races_as_mismatch(order_id, version):
            changed, change = order.changed(self.reason, origin_of(caller.subject, self._clock, order))

            async def write(unit: UnitOfWork) -> None:
                await unit.orders.change_status(changed, change)

            await self._transactions.publish(self.message(changed, change), write)
        return changed

    @abstractmethod
    def require_allowed(self, order: Order, caller: Caller) -> None:
        """Raises UnknownOrderError unless it is the caller's to do."""

    @abstractmethod
    def message(self, changed: Order, change: StatusChange) -> OutgoingMessage:
        """What tells of the change."""

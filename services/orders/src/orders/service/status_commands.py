"""The changes of its status for which somebody asks: a seller ships, a buyer confirms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from orders.domain.errors import StatusChangedError, VersionMismatchError
from orders.domain.order import TRANSITIONS, ChangeReason, Order, StatusChange
from orders.service import events
from orders.service.order_access import find_visible, in_trace_of, origin_of, require_buyer, require_version
from orders.service.unit_of_work import UnitOfWork, Units
from osenv import Clock
from servicekit.auth import Caller
from servicekit.message import OutgoingMessage
from servicekit.sql.units import TransactionalPublisher

# ----------------------------------------------------------------------------------------------------------------------
# A change of an order that one of its people asks for: read, decided by the domain, written and told in one piece.
#
# Invariants: of two changes that are asked for at once exactly one gets the order, by compare-and-set; who asks again
# for the change that they have made is answered as the first time, because the answer may have been lost. The order's
# history says who has made which change.


@dataclass(frozen=True, slots=True)
class Command:
    """What a caller asks for, of an order in `version` if one is named."""

    order_id: str
    caller: Caller
    reason: ChangeReason
    version: int | None

    async def once(self, units: Units, carry_out: Callable[[Order], Awaitable[Order]]) -> Order:
        """What `carry_out` makes of the order, or the order as it was after this caller's same command.

        Raises UnknownOrderError, VersionMismatchError, and what `carry_out` raises; a race that it loses is a mismatch
        for whoever has named a version.
        """
        order, earlier = await self._look(units)
        if earlier is not None:
            return earlier
        try:
            require_version(order, self.version)
            return await carry_out(order)
        except StatusChangedError as error:
            if self.version is None:
                raise
            _, earlier = await self._look(units)
            if earlier is not None:
                return earlier
            raise VersionMismatchError(self.order_id, self.version) from error

    async def _look(self, units: Units) -> tuple[Order, Order | None]:
        """The order as it is, and as it was after the caller's same command, if there was one."""
        async with units.looking() as unit:
            order = await find_visible(unit.orders, self.order_id, self.caller)
            if (order.status, self.reason) in TRANSITIONS and self.version in {None, order.version}:
                return order, None
            history = await unit.orders.history(self.order_id)
        # The history may be newer than the order that was read before it.
        for made, change in enumerate(history[: order.version], 1):
            is_same = (change.reason, change.actor) == (self.reason, self.caller.subject)
            if is_same and self.version in {None, made - 1}:
                return order, order.as_after(change, made)
        return order, None


class AskedChange(ABC):
    """A use case that changes nothing but the order's status."""

    reason: ClassVar[ChangeReason]
    what: ClassVar[str]  # the name of its span

    def __init__(self, units: Units, transactions: TransactionalPublisher[UnitOfWork], clock: Clock) -> None:
        self._units = units
        self._transactions = transactions
        self._clock = clock

    async def __call__(self, order_id: str, caller: Caller, version: int | None = None) -> Order:
        """The order after the change, which the caller may have made before.

        Raises UnknownOrderError, VersionMismatchError, IllegalTransitionError, StatusChangedError, PublishError,
        TransactionGivenUpError, StorageUnavailableError.
        """

        async def carry_out(order: Order) -> Order:
            self.require_allowed(order, caller)
            with in_trace_of(order, self.what):
                changed, change = order.changed(self.reason, origin_of(caller.subject, self._clock, order))

                async def write(unit: UnitOfWork) -> None:
                    await unit.orders.change_status(changed, change)

                await self._transactions.publish(self.message(changed, change), write)
            return changed

        return await Command(order_id, caller, self.reason, version).once(self._units, carry_out)

    @abstractmethod
    def require_allowed(self, order: Order, caller: Caller) -> None:
        """Raises UnknownOrderError unless it is the caller's to do."""

    @abstractmethod
    def message(self, changed: Order, change: StatusChange) -> OutgoingMessage:
        """What tells of the change."""


# ----------------------------------------------------------------------------------------------------------------------
# Shipping an order that is paid.
#
# Invariant: an order is shipped or cancelled, never both: both change it from AWAITING_SHIPMENT by compare-and-set.


class ShipOrder(AskedChange):
    """The use case behind POST /orders/{id}/ship; whether the caller may ship at all is asked there."""

    reason = ChangeReason.SHIPPED
    what = "ship order"

    def require_allowed(self, order: Order, caller: Caller) -> None:
        """Whoever may ship ships any order that he may see."""

    def message(self, changed: Order, change: StatusChange) -> OutgoingMessage:
        return events.shipped(changed)


# ----------------------------------------------------------------------------------------------------------------------
# The buyer has received the order: it is completed, and what is completed stays so.


class ConfirmReceipt(AskedChange):
    """The use case behind POST /orders/{id}/confirm. Only the order's buyer confirms, whatever else a caller may do."""

    reason = ChangeReason.RECEIVED
    what = "confirm receipt"

    def require_allowed(self, order: Order, caller: Caller) -> None:
        require_buyer(order, caller)

    def message(self, changed: Order, change: StatusChange) -> OutgoingMessage:
        return events.completed(changed, change)

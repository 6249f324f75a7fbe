"""The commands after a payment: a seller ships, a buyer confirms, or the order completes by itself some days later."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

import structlog

from orders.domain.errors import StatusChangedError, UnknownOrderError, VersionMismatchError
from orders.domain.order import TRANSITIONS, ChangeReason, Order, OrderStatus, StatusChange
from orders.service import events
from orders.service.use_case import (
    UnitOfWork,
    Units,
    find_visible,
    in_trace_of,
    origin_of,
    require_buyer,
    require_version,
)
from osenv import Clock
from servicekit.auth import Caller
from servicekit.errors import ConsumedBeforeError
from servicekit.message import MessagePublisher, OutgoingMessage
from servicekit.sql.units import TransactionalPublisher, require_first


@dataclass(frozen=True, slots=True)
class Command:
    """What a caller asks for, of an order in `version` if one is named.

    Invariants: of two changes that are asked for at once exactly one gets the order, by compare-and-set; a caller that
    repeats its change is answered as the first time, because the answer may have been lost. The order's history has the
    actor of each change.
    """

    order_id: str
    caller: Caller
    reason: ChangeReason
    version: int | None

    async def once(self, units: Units, carry_out: Callable[[Order], Awaitable[Order]]) -> Order:
        """What `carry_out` makes of the order, or the order as it was after this caller's same command.

        Raises UnknownOrderError, VersionMismatchError, and what `carry_out` raises; a race that it loses is a mismatch
        for a caller that has named a version.
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
        async with units.autocommit() as unit:
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


class StatusCommand(ABC):
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


class ShipOrder(StatusCommand):
    """The use case behind POST /orders/{id}/ship; whether the caller may ship at all is asked there.

    Invariant: an order is shipped or cancelled, never both: both change it from AWAITING_SHIPMENT by compare-and-set.
    """

    reason = ChangeReason.SHIPPED
    what = "ship order"

    def require_allowed(self, order: Order, caller: Caller) -> None:
        """A caller that may ship ships any order that it may see."""

    def message(self, changed: Order, change: StatusChange) -> OutgoingMessage:
        return events.shipped(changed)


class ConfirmReceipt(StatusCommand):
    """The use case behind POST /orders/{id}/confirm. Only the order's buyer confirms, whatever else a caller may do."""

    reason = ChangeReason.RECEIVED
    what = "confirm receipt"

    def require_allowed(self, order: Order, caller: Caller) -> None:
        require_buyer(order, caller)

    def message(self, changed: Order, change: StatusChange) -> OutgoingMessage:
        return events.completed(changed, change)


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
    """Sets the timer of a shipped order, and acts on those that ring.

    Invariants: no order completes by itself before shipped_at_ms + completion_after_ms, whatever a message says; a
    message that comes early is sent again for the rest, one that comes again finds the order completed and is ignored.
    The queue keeps a message for 40 days at most: a longer time is made of several messages.
    """

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

    async def fire(self, order_id: str) -> CompletionOutcome:
        """Complete the order if it is shipped and its time has come; a timer that rings early is sent again.

        Raises PublishError, TransactionGivenUpError, StorageUnavailableError; the message must then come again.
        """
        async with self._units.autocommit() as unit:
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
            return await self.fire(order.order_id)
        return CompletionOutcome.COMPLETED

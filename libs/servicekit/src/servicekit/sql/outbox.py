"""The outbox: a message that cannot be sent, because the queue is away, is stored with the change that it reports, and
sent once the queue is back.

    payment = await self._publisher.publish(events.succeeded(payment), lambda unit: self._write(unit, payment))

Invariants: a message is told exactly if its unit of work was committed, and by one way only: as the message of a
transaction, or as a row of the outbox, never as both. The relay takes the row away in the very transaction whose
message it tells, so that a row is told once, whichever process dies in between and however many relay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

import telemetry
from osenv import Clock
from servicekit.background import WakeUp
from servicekit.errors import PublishError, RejectedError, ServiceError, TransactionGivenUpError
from servicekit.message import OutgoingMessage
from servicekit.sql.units import TransactionalPublisher, TransactionalUnit

BATCH_MESSAGES = 64
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 2.0
RELAY_MESSAGE = "relay message"  # the name of a span
LOOK_INTERVAL_S = 5.0  # another process may have died with its rows

T = TypeVar("T")
UnitT_co = TypeVar("UnitT_co", bound="OutboxUnit", covariant=True)
UnitT = TypeVar("UnitT", bound="OutboxUnit")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KeptMessage:
    """A message that waits; rows are numbered in the order in which they were written.

    `traceparent` is where it was written, so that it is told in the trace of what it tells.
    """

    row_id: int
    message: OutgoingMessage
    traceparent: str | None = None


class Outbox(Protocol):
    """The messages that wait for the queue, as part of a unit of work."""

    async def add(self, message: OutgoingMessage, at_ms: int, traceparent: str | None = None) -> None:
        """Keep the message. Raises ValueError for a delayed one: a delay has no meaning after a wait."""

    async def oldest(self, limit: int) -> list[KeptMessage]:
        """At most `limit` messages, the first one first."""

    async def remove(self, row_id: int) -> bool:
        """Take a message away; False if another process has."""

    async def count(self) -> int:
        """How many messages wait."""


class OutboxUnit(TransactionalUnit, Protocol):
    """What the outbox needs of a service's unit of work."""

    @property
    def outbox(self) -> Outbox: ...


class OutboxUnits(Protocol[UnitT_co]):
    """What the outbox needs of a service's units."""

    def snapshot(self) -> AbstractAsyncContextManager[UnitT_co]: ...

    def writing(self) -> AbstractAsyncContextManager[UnitT_co]: ...


class _ToldBeforeError(RejectedError):
    """Another process has taken the row; the only effect is that this attempt is rolled back."""


class OutboxPublisher(Generic[UnitT]):
    """Publishes together with units of work, through the queue if it is there, else through the outbox."""

    def __init__(
        self,
        units: OutboxUnits[UnitT],
        publisher: TransactionalPublisher[UnitT],
        clock: Clock,
        wake: WakeUp,
        *,
        is_queue_there: Callable[[], bool],
    ) -> None:
        self._units = units
        self._publisher = publisher
        self._clock = clock
        self._wake = wake
        self._is_queue_there = is_queue_there

    async def publish(self, message: OutgoingMessage, local: Callable[[UnitT], Awaitable[T]]) -> T:
        """What `local` returns, after its unit was committed; the message is told then, or once the queue is back.

        `local` writes and does not commit; it may be called twice, each time in a new unit. What it raises comes out,
        and nothing was written or told then. Raises StorageUnavailableError.
        """
        if self._is_queue_there():
            try:
                return await self._publisher.publish(message, local)
            except (PublishError, TransactionGivenUpError) as error:
                # Both mean that nothing was written, and that the message will never be delivered.
                log.warning("the queue did not take a message; it is kept", topic=message.topic, error=str(error))
        async with self._units.writing() as unit:
            result = await local(unit)
            await unit.outbox.add(message, self._clock.wall_ms(), telemetry.traceparent())
            await unit.commit()
        self._wake.set()
        return result


class OutboxRelay(Generic[UnitT]):
    """A loop that tells what waits, at its start and whenever it is woken, and backs off while the queue is away."""

    def __init__(
        self, units: OutboxUnits[UnitT], publisher: TransactionalPublisher[UnitT], clock: Clock, wake: WakeUp
    ) -> None:
        self._units = units
        self._publisher = publisher
        self._clock = clock
        self._wake = wake
        self._end = WakeUp()
        self._is_waiting = False

    async def run(self) -> None:
        """Until `stop`."""
        backoff_s = BACKOFF_FIRST_S
        while not self._end.is_set:
            self._wake.reset()  # before reading: what is kept after the read rings again
            try:
                await self.relay()
            except ServiceError as error:
                if not self._is_waiting:
                    log.warning("messages wait for the queue; trying again until they are told", error=str(error))
                self._is_waiting = True
                await self._end.wait(self._clock, backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            if self._is_waiting:
                log.info("every message that waited for the queue is told")
            self._is_waiting = False
            backoff_s = BACKOFF_FIRST_S
            await self._wake.wait(self._clock, LOOK_INTERVAL_S)

    def stop(self) -> None:
        """Let `run` return after the pass in hand."""
        self._end.set()
        self._wake.set()

    async def relay(self) -> int:
        """Tell everything that waits, in its order; returns how many messages were told by this call.

        Raises PublishError, TransactionGivenUpError, StorageUnavailableError: the rest waits on, in its order.
        """
        told = 0
        while True:
            async with self._units.snapshot() as unit:
                kept = await unit.outbox.oldest(BATCH_MESSAGES)
            for one in kept:
                told += await self._tell(one)
            if len(kept) < BATCH_MESSAGES:
                return told

    async def _tell(self, kept: KeptMessage) -> bool:
        async def take_away(unit: UnitT) -> None:
            if not await unit.outbox.remove(kept.row_id):
                raise _ToldBeforeError(f"message {kept.row_id} was told before")

        try:
            with telemetry.joined_span(RELAY_MESSAGE, kept.traceparent):
                await self._publisher.publish(kept.message, take_away)
        except _ToldBeforeError:
            return False
        return True

"""Messages, inbox and idempotency keys of a unit of work: it sends its message if it commits, and is carried out once.

Ports and rules only; `tables` has them in SQL.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from osenv import Clock
from servicekit.errors import ConsumedBeforeError, KeyReusedError, PublishError, RequestInFlightError
from servicekit.message import MessagePublisher, OutgoingMessage

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


TRANSACTIONS_KEEP_DAYS = 30  # of the rows; mqclient.sqlalchemy.Retention reasons about it

T = TypeVar("T")
UnitT_co = TypeVar("UnitT_co", bound="TransactionalUnit", covariant=True)
UnitT = TypeVar("UnitT", bound="TransactionalUnit")


class LocalOutcome(enum.Enum):
    """The outcome of a local transaction, as far as its process knows."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


LocalTransaction = Callable[[str], Awaitable[LocalOutcome]]
TransactionCheck = Callable[[str], Awaitable[LocalOutcome]]


class TransactionRows(Protocol):
    """The rows that say which transactions were committed, as part of a unit of work."""

    def begin(self, transaction_ids: Sequence[str], at_ms: int) -> None:
        """This unit is the local transaction of these ids. A later statement of the unit may write their rows."""

    async def record(self) -> None:
        """Write the rows that no statement has written yet. Raises TransactionGivenUpError after a check."""

    async def answer_check(self, transaction_id: str, at_ms: int) -> LocalOutcome:
        """What became of the transaction. If nothing yet, its row is written and committed now: it never can be.

        Raises StorageUnavailableError.
        """


class TransactionalUnit(Protocol):
    """What transactions need of a service's unit of work."""

    @property
    def transactions(self) -> TransactionRows: ...

    async def commit(self) -> None: ...


class WritingUnits(Protocol[UnitT_co]):
    """What transactions need of a service's units."""

    def writing(self) -> AbstractAsyncContextManager[UnitT_co]: ...


class TransactionalQueue(Protocol):
    """The way into the queue for half messages."""

    async def send_in_transaction(self, message: OutgoingMessage, local: LocalTransaction) -> None:
        """Send the half message, call `local` with the transaction's id, and tell the queue what became of it.

        `local` does not raise. Raises PublishError when the queue did not take the half message; `local` was not called
        then. When the queue cannot be told the outcome this returns all the same: the queue will ask.
        """


class Queue(MessagePublisher, TransactionalQueue, Protocol):
    """Both ways into the queue."""


class TransactionalPublisher(Generic[UnitT]):
    """Publishes messages together with units of work: each is told exactly if its unit was committed.

        order = await self._transactions.publish(events.created(order), lambda unit: self._write(unit, order))

    The queue gets a half message, which no consumer sees; then the local transaction runs, and its row
    (`unit.transactions`) is committed with what it wrote; then the queue is told to deliver or to drop the message. If
    the process dies in between, the queue asks any running process of the group, and `check` answers from the database.

    Invariants: `local` runs only after the queue has the half message; a transaction row exists exactly for committed
    local transactions and for those that were given up, and its id is never used twice; so the later one of transaction
    and check finds the row of the other.
    """

    def __init__(self, units: WritingUnits[UnitT], queue: TransactionalQueue, clock: Clock) -> None:
        self._units = units
        self._queue = queue
        self._clock = clock

    async def publish(self, message: OutgoingMessage, local: Callable[[UnitT], Awaitable[T]]) -> T:
        """What `local` returns, after its unit was committed; the message is delivered then, or soon after.

        `local` writes and does not commit. When it raises, its unit is rolled back, the message is not delivered, and
        the error comes out of here. Raises PublishError when the queue is not there (nothing was written),
        TransactionGivenUpError, and StorageUnavailableError.
        """
        return await self.publish_all((message,), local)

    async def publish_all(self, messages: Sequence[OutgoingMessage], local: Callable[[UnitT], Awaitable[T]]) -> T:
        """As `publish`, for several messages that are told together or not at all.

        Each is a half message of its own, with an id and a row of its own; the rows are committed in one unit.
        """
        attempt = _Attempt(self._units, self._clock, local)
        await self._send(messages, (), attempt)
        return attempt.result()

    async def check(self, transaction_id: str) -> LocalOutcome:
        """The answer for the queue that asks. Raises StorageUnavailableError; the queue then asks again."""
        async with self._units.writing() as unit:
            return await unit.transactions.answer_check(transaction_id, self._clock.wall_ms())

    async def _send(
        self, messages: Sequence[OutgoingMessage], transaction_ids: tuple[str, ...], attempt: _Attempt[UnitT, T]
    ) -> None:
        """Send the half messages one after the other; with the last one, run the attempt under all their ids."""

        async def proceed(transaction_id: str) -> LocalOutcome:
            begun = (*transaction_ids, transaction_id)
            if len(messages) == 1:
                await attempt.run(begun)
            else:
                try:
                    await self._send(messages[1:], begun, attempt)
                except PublishError as error:  # the attempt was not run
                    attempt.error = error
            return attempt.outcome

        await self._queue.send_in_transaction(messages[0], proceed)


class _Attempt(Generic[UnitT, T]):
    """One run of a local transaction; keeps its result or its error for the caller, and its outcome for the queue."""

    def __init__(self, units: WritingUnits[UnitT], clock: Clock, local: Callable[[UnitT], Awaitable[T]]) -> None:
        self._units = units
        self._clock = clock
        self._local = local
        self._results: list[T] = []
        self.error: Exception | None = None
        self.outcome = LocalOutcome.ROLLED_BACK

    async def run(self, transaction_ids: Sequence[str]) -> None:
        try:
            async with self._units.writing() as unit:
                unit.transactions.begin(transaction_ids, self._clock.wall_ms())
                result = await self._local(unit)
                await unit.transactions.record()
                self.outcome = LocalOutcome.UNKNOWN  # a commit that fails may have been carried out
                await unit.commit()
                self.outcome = LocalOutcome.COMMITTED
                self._results.append(result)
        except Exception as error:
            self.error = error

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        (result,) = self._results
        return result


class Inbox(Protocol):
    """The business keys that consumer groups have consumed, so that a message that comes again changes nothing.

        async with units.writing() as unit:
            if await unit.inbox.once(GROUP, payment_id, now_ms):
                ... carry it out, and commit ...

    A handler that publishes together with the unit cannot leave it without an error, and calls `require_first` instead.
    The guards of the domain (compare-and-set on a status, primary keys) stay behind it: the inbox forgets after some
    days, they do not.

    Invariant: a key is consumed by the very transaction that carries its message out.
    """

    async def once(self, consumer_group: str, business_key: str, at_ms: int) -> bool:
        """Whether this is the first time; it is remembered if the unit is committed.

        The key names the act, not the message. Raises MalformedMessageError for a text that can be no key.
        """


async def require_first(inbox: Inbox, consumer_group: str, business_key: str, at_ms: int) -> None:
    """Raises ConsumedBeforeError unless this is the first time."""
    if not await inbox.once(consumer_group, business_key, at_ms):
        raise ConsumedBeforeError(consumer_group, business_key)


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """A key that was used: by which subject, for which payload, and with which result."""

    subject: str
    key: str
    fingerprint: str
    result_id: str

    def require_fingerprint(self, fingerprint: str) -> None:
        """Raises KeyReusedError when the key was used for another payload."""
        if self.fingerprint != fingerprint:
            raise KeyReusedError(self.key)


class IdempotencyKeys(Protocol):
    """The keys that were used: a request that is repeated with its key is answered with what the first one made.

        with self._in_flight.holding(buyer_id, key):
            async with units.writing() as unit:
                earlier = await unit.keys.find(buyer_id, key)
                if earlier is not None:
                    earlier.require_fingerprint(fingerprint(request))
                    ... answer with the result of earlier.result_id ...
                await unit.keys.claim(KeyClaim(buyer_id, key, fingerprint(request), new_id), now_ms)
                ... make it, and commit ...

    A key belongs to the subject that used it: two buyers may use one text, and neither learns of the other.

    Invariants: a key of a subject makes at most one result, because its claim is part of the result's own transaction;
    a request that was rejected leaves no claim behind.
    """

    async def find(self, subject: str, key: str) -> KeyClaim | None:
        """The subject's earlier use of the key, if there was one."""

    async def claim(self, claim: KeyClaim, at_ms: int) -> None:
        """Raises RequestInFlightError when another process claims the key at the same moment."""


class InFlightKeys:
    """The keys whose requests are being carried out by this process.

    In memory on purpose: a key "in flight" in the database would stay so after a crash. Between processes the claim
    decides.
    """

    def __init__(self) -> None:
        self._keys: set[tuple[str, str]] = set()

    @contextmanager
    def holding(self, subject: str, key: str) -> Iterator[None]:
        """Raises RequestInFlightError when another request of the subject holds the key."""
        held = (subject, key)
        if held in self._keys:
            raise RequestInFlightError(key)
        self._keys.add(held)
        try:
            yield
        finally:
            self._keys.discard(held)


def fingerprint(request: DataclassInstance) -> str:
    """Equal for equal requests, whatever their JSON looked like; 64 characters."""
    return hashlib.sha256(json.dumps(asdict(request), sort_keys=True).encode()).hexdigest()

"""A queue for tests: keeps what it is given, and fails, asks about transactions or parks them when it is told to."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable

from servicekit.errors import PublishError, QueueUnreachableError
from servicekit.message import OutgoingMessage, Subscription
from servicekit.process.reconciler import ParkedTransaction
from servicekit.sql.units import LocalOutcome, LocalTransaction, TransactionCheck

# As in the queue itself, no two attempts have one id, whichever publisher made them.
_numbers = itertools.count(1)


class ProcessDeathError(BaseException):
    """Raised by a test's hook: the process ends here, and nothing catches it."""


async def die(_transaction_id: str) -> None:
    """A hook: the process dies at this point."""
    raise ProcessDeathError


async def _go_on(_transaction_id: str) -> None:
    """A hook that does nothing."""


class RecordingPublisher:
    """Implements `MessagePublisher`, `TransactionalQueue` and `ParkedTransactions`.

    `messages` are those that consumers can see, in order; `halves` are the open half messages by transaction id, and
    `parked` those that the queue has given up asking about. With `loses_ends` it does not hear how transactions end.
    `before_local` and `after_local` are called around local transactions, `after_local` before the queue is told.
    """

    def __init__(self) -> None:
        self.messages: list[OutgoingMessage] = []
        self.halves: dict[str, OutgoingMessage] = {}
        self.parked: dict[str, OutgoingMessage] = {}
        self.attempts = 0
        self.is_down = False
        self.loses_ends = False
        self.parked_since_ms = 1_700_000_000_000  # when SimClock begins
        self.before_local: Callable[[str], Awaitable[None]] = _go_on
        self.after_local: Callable[[str], Awaitable[None]] = _go_on

    async def publish(self, message: OutgoingMessage) -> None:
        self._count_attempt()
        self.messages.append(message)

    async def send_in_transaction(self, message: OutgoingMessage, local: LocalTransaction) -> None:
        self._count_attempt()
        transaction_id = f"{next(_numbers):032X}"
        self.halves[transaction_id] = message
        await self.before_local(transaction_id)
        outcome = await local(transaction_id)
        await self.after_local(transaction_id)
        if not self.loses_ends:
            self._end(transaction_id, outcome)

    async def check_back(self, check: TransactionCheck) -> None:
        """Ask about every open half message once."""
        for transaction_id in list(self.halves):
            self._end(transaction_id, await check(transaction_id))

    def park(self) -> None:
        """Park the open half messages: their checks got no answer."""
        self.parked |= self.halves
        self.halves.clear()

    async def oldest(self, limit: int) -> list[ParkedTransaction]:
        self._require_up()
        return [
            ParkedTransaction(transaction_id, message.topic, (message.key,), since_ms=self.parked_since_ms)
            for transaction_id, message in list(self.parked.items())[:limit]
        ]

    async def decide(self, transaction_id: str, *, commit: bool) -> None:
        self._require_up()
        message = self.parked.pop(transaction_id, None)
        if message is not None and commit:
            self.messages.append(message)

    def taken(self, topic: str, tag: str) -> list[OutgoingMessage]:
        """The messages of one kind."""
        return [message for message in self.messages if (message.topic, message.tag) == (topic, tag)]

    def _count_attempt(self) -> None:
        self.attempts += 1
        if self.is_down:
            raise PublishError("the queue is down")

    def _require_up(self) -> None:
        if self.is_down:
            raise QueueUnreachableError("the queue is down")

    def _end(self, transaction_id: str, outcome: LocalOutcome) -> None:
        if outcome is LocalOutcome.UNKNOWN or transaction_id not in self.halves:
            return
        message = self.halves.pop(transaction_id)
        if outcome is LocalOutcome.COMMITTED:
            self.messages.append(message)


async def deliver(messages: list[OutgoingMessage], subscriptions: Iterable[Subscription]) -> int:
    """Empty `messages` into the handlers, delays ignored; returns how many there were. What handlers raise comes out.

    What is published meanwhile stays in `messages` for the next call.
    """
    delivered, messages[:] = messages[:], []
    groups = tuple(subscriptions)
    for message in delivered:
        for subscription in groups:
            if subscription.takes(message.topic, message.tag):
                await subscription.handle(message.body)
    return len(delivered)

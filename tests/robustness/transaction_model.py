"""What must be true of transactional messages, whatever happens to client, broker and network.

- A message is visible only if its local transaction has committed, and stays visible.
- In the end it is visible if its local transaction has committed: once.
- Business row and transaction row are committed together, or none is.
- What the sender hears is true: COMMIT_MESSAGE means committed, an error from before the local transaction that it
  never ran, an error of the local transaction that nothing is left of it.
- A message with a delay is not visible before it has waited from its local transaction on.
- No check comes before the immunity is over; without an active member nothing is decided.
- What is parked is for its sender rolled back, and visible only when an operator has decided so.
- Ending a transaction again tells how it has ended, and changes nothing.

Under asynchronous flush a power cut may lose half messages that were acknowledged. Of those nothing is promised but
that they do not become visible unless they are committed; which ones they are the broker's own memory says after the
cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from transaction_database import Row

from mqclient.sqlalchemy.transactions import COMMITTED, TOMBSTONE

IMMUNITY_MS = 6_000
LONG_IMMUNITY_S = 20  # of messages that ask for it


class InvariantError(AssertionError):
    """Something that must be true is not."""


class Ending(Enum):
    """What a local transaction is to do."""

    COMMITS = "commits"
    ROLLS_BACK = "rolls back"
    COMMITS_AND_SAYS_UNKNOW = "commits and says UNKNOW"
    ROLLS_BACK_AND_SAYS_UNKNOW = "rolls back and says UNKNOW"
    COMMITS_AND_RAISES = "commits and raises"

    @property
    def commits(self) -> bool:
        return self.name.startswith("COMMITS")

    @property
    def tells(self) -> bool:
        """Whether the broker hears of it without asking."""
        return self in {Ending.COMMITS, Ending.ROLLS_BACK}


class Wait(Enum):
    """The delay of a message; milliseconds from its commit."""

    NONE = 0
    LEVEL = 5_000  # delay level 2
    TIMED = 12_345

    @property
    def delay_level(self) -> int:
        return 2 if self is Wait.LEVEL else 0

    @property
    def delay_ms(self) -> int:
        return self.value if self is Wait.TIMED else 0


class Heard(Enum):
    """What the sender heard of its attempt."""

    COMMITTED = "COMMIT_MESSAGE"
    UNKNOWN = "UNKNOW, or an error after the local transaction had begun to commit"
    NOT_BEGUN = "an error from before the local transaction"
    ROLLED_BACK = "an error of the local transaction"
    TOMBSTONED = "the tombstone of a check"


class Plan(NamedTuple):
    """What an attempt is to be."""

    ending: Ending
    wait: Wait = Wait.NONE
    long_immunity: bool = False


class Visible(NamedTuple):
    """A message that a consumer can read."""

    body: str
    transaction_id: str


@dataclass(eq=False)
class Attempt:
    """One call of send_message_in_transaction."""

    order_id: str
    body: str
    plan: Plan
    begun_ms: int
    transaction_id: str = ""  # as soon as its local transaction begins
    over_ms: int = 0  # when its local transaction came to its end, if it did
    heard: Heard | None = None
    crashes: int = 0


@dataclass
class TransactionModel:
    """The truth is what the database holds; this compares it with what consumers and senders see."""

    attempts: dict[str, Attempt] = field(default_factory=dict)  # by body
    counts: Counter[str] = field(default_factory=Counter)
    _seen: set[str] = field(default_factory=set)  # bodies that were visible at some time
    _lost: set[str] = field(default_factory=set)  # transaction ids that a power cut under asynchronous flush took

    def begin(self, order_id: str, plan: Plan, now_ms: int) -> Attempt:
        body = f"{order_id}/{len(self.attempts)}"
        attempt = self.attempts[body] = Attempt(order_id, body, plan, now_ms)
        return attempt

    def asked(self, body: str, now_ms: int) -> None:
        """A check has come for this message."""
        self.counts["checks"] += 1
        attempt = self.attempts[body]
        waited_ms = now_ms - attempt.begun_ms
        if waited_ms < (LONG_IMMUNITY_S * 1_000 if attempt.plan.long_immunity else IMMUNITY_MS):
            raise InvariantError(f"{body} was checked {waited_ms} ms after it was sent")

    def look(self, now_ms: int, visible: Sequence[Visible], orders: Iterable[Row], outcomes: Mapping[str, str]) -> None:
        """Compare the consumer's view with the database."""
        committed = {row.body: row.transaction_id for row in orders}
        recorded = {id_ for id_, outcome in outcomes.items() if outcome == COMMITTED}
        if recorded != set(committed.values()):
            raise InvariantError(f"transaction rows {sorted(recorded)} belong to business rows {committed}")
        for (body, id_), count in Counter(visible).items():
            if committed.get(body) != id_:
                raise InvariantError(f"{body} of {id_} is visible; committed are {committed}")
            if count > 1:
                raise InvariantError(f"{body} is visible {count} times")
            attempt = self.attempts[body]
            if (waited_ms := now_ms - max(attempt.over_ms, attempt.begun_ms)) < attempt.plan.wait.value:
                raise InvariantError(f"{body} is visible after {waited_ms} ms; it was to wait {attempt.plan.wait}")
        now = {one.body for one in visible}
        gone = {body for body in self._seen - now if committed.get(body) not in self._lost}
        if gone:
            raise InvariantError(f"{sorted(gone)} were visible and are not any more")
        self._seen = now
        for attempt in self.attempts.values():
            _check_what_was_heard(attempt, attempt.body in committed, outcomes)

    def power_was_cut(self, known: Iterable[str], *, flush_is_sync: bool) -> None:
        """The broker is there again, and remembers these transactions: open, or how they ended."""
        begun = {attempt.transaction_id for attempt in self.attempts.values()} - {""}
        lost = begun - set(known) - self._lost
        if lost and flush_is_sync:
            raise InvariantError(f"acknowledged half messages are lost: {sorted(lost)}")
        self.counts["halves lost under asynchronous flush"] += len(lost)
        self._lost |= lost
        if not flush_is_sync:
            self._seen = set()  # what was delivered may have to be delivered again

    def missing(self, orders: Iterable[Row]) -> list[str]:
        """What has to become visible still."""
        return sorted({row.body for row in orders if row.transaction_id not in self._lost} - self._seen)

    def check_end(self) -> None:
        """When everything has been there again for long enough."""
        self.counts["visible messages"] += len(self._seen)
        self.counts["of these with a delay"] += sum(
            self.attempts[body].plan.wait is not Wait.NONE for body in self._seen
        )
        self.counts["attempts"] += len(self.attempts)
        self.counts["attempts that met two crashes or more"] += sum(one.crashes > 1 for one in self.attempts.values())
        for attempt in self.attempts.values():
            self.counts[f"senders that heard {attempt.heard.value if attempt.heard else 'nothing'}"] += 1

    def ended_transactions(self, outcomes: Mapping[str, str]) -> dict[str, bool]:
        """Whether each transaction that must be known has committed."""
        begun = {attempt.transaction_id for attempt in self.attempts.values()} | outcomes.keys()
        return {id_: outcomes.get(id_) == COMMITTED for id_ in begun - {""} - self._lost}


def _check_what_was_heard(attempt: Attempt, committed: bool, outcomes: Mapping[str, str]) -> None:
    wanted: bool | None = {
        Heard.COMMITTED: True,
        Heard.NOT_BEGUN: False,
        Heard.ROLLED_BACK: False,
        Heard.TOMBSTONED: False,
    }.get(attempt.heard)  # type: ignore[arg-type]
    if wanted is not None and wanted != committed:
        word = "has" if committed else "has not"
        raise InvariantError(f"the sender of {attempt.body} heard {attempt.heard}, and it {word} committed")
    if attempt.heard is Heard.NOT_BEGUN and attempt.transaction_id:
        raise InvariantError(f"the sender of {attempt.body} heard that it had not begun, and it had")
    if attempt.heard is Heard.TOMBSTONED and outcomes.get(attempt.transaction_id) != TOMBSTONE:
        raise InvariantError(f"the sender of {attempt.body} heard of a tombstone that is not there")

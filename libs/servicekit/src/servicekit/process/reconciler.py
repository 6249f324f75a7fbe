"""The reconciler: finds what messages should have done and did not, and does it (ADR 120).

Each check reads a bounded part of this service's tables, and says of what it finds how it is put right. A repair does
what a message would have done, through the same use case: doing it twice changes nothing.

Invariants: a round reads at most two pages of a list for each check; one finding that cannot be put right keeps no
other from it, and one check no other; what was put right is left alone for REPEAT_AFTER_S.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import structlog

from osenv import Clock
from servicekit.background import WakeUp
from servicekit.errors import ServiceError
from servicekit.sql.units import TRANSACTIONS_KEEP_DAYS, LocalOutcome, TransactionCheck

# A message that was told again is on its way for a while; orders or payments may be away meanwhile.
REPEAT_AFTER_S = 600.0
FAILURES_MAX = 10  # of one check in one round: more of them mean that something is away
# The periodic rounds leave older rows to the command, so that their cost does not grow with the age of the shop.
SWEEP_WINDOW_MS = 14 * 86_400_000

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """An inconsistency; `what` is one sentence, always the same for the same thing.

    `repair` answers whether it is put right; what has to wait for something else is looked at again in the next round.
    """

    what: str
    repair: Callable[[], Awaitable[bool]] = field(compare=False, repr=False)


class Check(Protocol):
    """One kind of finding."""

    @property
    def has_more(self) -> bool:
        """Whether the last `find` has not seen everything yet."""

    async def find(self, limit: int) -> list[Finding]:
        """What a further part of the tables shows, pages of `limit` rows. Raises ServiceError."""


class Sweep(Generic[T]):
    """Reads a list that runs from the newest to the oldest: its first page each time, and one of the others in turn.

    So what happened a moment ago is seen soon, and everything is seen at last.
    """

    def __init__(self, page: Callable[[T | None, int], Awaitable[list[T]]]) -> None:
        """`page` gives at most so many of the list from behind an element, or from its start."""
        self._page = page
        self._after: T | None = None

    @property
    def has_more(self) -> bool:
        return self._after is not None

    async def next(self, limit: int) -> list[T]:
        """The first page, and the next one of the others."""
        newest = await self._page(None, limit)
        if len(newest) < limit:
            self._after = None
            return newest
        older = await self._page(self._after or newest[-1], limit)
        self._after = older[-1] if len(older) == limit else None
        return newest + older


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What a whole run has come to: what it put right, or found in a dry run, and its errors, as sentences."""

    found: tuple[str, ...]
    errors: tuple[str, ...]


class Reconciler:
    """A loop that makes a round every `interval_s`; `reconcile` goes through everything once."""

    def __init__(self, checks: Sequence[Check], clock: Clock, *, interval_s: float, rows_max: int) -> None:
        self._checks = checks
        self._clock = clock
        self._interval_s = interval_s
        self._rows_max = rows_max
        self._end = WakeUp()
        self._done_at: dict[str, float] = {}  # what was put right, and when on the monotonic clock

    async def run(self) -> None:
        """Until `stop`. The first round comes after an interval: what was under way at the start goes on by itself."""
        while True:
            await self._end.wait(self._clock, self._interval_s)
            if self._end.is_set:
                return
            await self.round()

    def stop(self) -> None:
        """Let `run` return after the round in hand."""
        self._end.set()

    async def round(self) -> None:
        """Each check once. Never raises ServiceError: what cannot be done now is in the log, and comes again."""
        now = self._clock.monotonic()
        self._done_at = {what: at for what, at in self._done_at.items() if now - at < REPEAT_AFTER_S}
        for check in self._checks:
            _, errors = await self._look(check, is_dry_run=False)
            if errors:
                log.warning(
                    "a check could not put everything right; it tries again", failures=len(errors), error=errors[0]
                )

    async def reconcile(self, *, is_dry_run: bool) -> Reconciled:
        """Each check until it has seen everything; with `is_dry_run` nothing is put right."""
        found: list[str] = []
        errors: list[str] = []
        for check in self._checks:
            while True:
                more, failures = await self._look(check, is_dry_run=is_dry_run)
                found += more
                errors += failures
                if failures or not check.has_more:
                    break
        return Reconciled(tuple(found), tuple(errors))

    async def _look(self, check: Check, *, is_dry_run: bool) -> tuple[list[str], list[str]]:
        """One look of one check: what it put right and had not before, and the errors."""
        try:
            findings = await check.find(self._rows_max)
        except ServiceError as error:
            return [], [str(error)]
        found: list[str] = []
        errors: list[str] = []
        for finding in findings:
            if finding.what in self._done_at:
                continue
            if len(errors) == FAILURES_MAX:
                break
            try:
                if not is_dry_run:
                    if not await finding.repair():
                        continue
                    log.warning("the reconciler has put something right", found=finding.what)
            except ServiceError as error:
                errors.append(f"{finding.what}: {error}")
            else:
                found.append(finding.what)
                self._done_at[finding.what] = self._clock.monotonic()
        return found, errors


DAY_MS = 86_400_000
# The cleaning may be a day behind, and clocks differ.
DECIDED_UNTIL_MS = (TRANSACTIONS_KEEP_DAYS - 1) * DAY_MS


@dataclass(frozen=True, slots=True)
class ParkedTransaction:
    """A transaction whose checks got no answer; `topic` and `keys` are those of its message."""

    transaction_id: str
    topic: str
    keys: tuple[str, ...]
    since_ms: int


class ParkedTransactions(Protocol):
    """The port to the queue's operator calls. Both methods raise QueueUnreachableError."""

    async def oldest(self, limit: int) -> Sequence[ParkedTransaction]:
        """At most so many parked transactions of this service, the oldest first."""

    async def decide(self, transaction_id: str, *, commit: bool) -> None:
        """Deliver the message, or give it up; one that was decided before stays so."""


class ParkedTransactionsCheck:
    """Implements `Check`: every transaction that the queue has given up asking about is a finding (ADR 39).

    Invariants: what is decided is what the table says, or, where it has no row, that there never will be one; a
    transaction that is older than the rows of the table is left to a person.
    """

    has_more = False

    def __init__(self, parked: ParkedTransactions, check: TransactionCheck, clock: Clock) -> None:
        """`check` is the answer to the queue's own question."""
        self._parked = parked
        self._check = check
        self._clock = clock

    async def find(self, limit: int) -> list[Finding]:
        return [self._finding(one) for one in await self._parked.oldest(limit) if self._is_decidable(one)]

    def _is_decidable(self, one: ParkedTransaction) -> bool:
        if self._clock.wall_ms() - one.since_ms < DECIDED_UNTIL_MS:
            return True
        log.error("a parked transaction is older than the table of transactions", transaction=one.transaction_id)
        return False

    def _finding(self, one: ParkedTransaction) -> Finding:
        async def repair() -> bool:
            outcome = await self._check(one.transaction_id)
            if outcome is LocalOutcome.UNKNOWN:
                return False
            await self._parked.decide(one.transaction_id, commit=outcome is LocalOutcome.COMMITTED)
            return True

        what = f"transaction {one.transaction_id} ({one.topic}, {' '.join(one.keys)}) is parked: its row decides"
        return Finding(what, repair)

"""Transactions that the queue has given up asking about: this service's table of transactions decides them (ADR 39).

Invariants: what is decided is what the table says, or, where it has no row, that there never will be one; a transaction
that is older than the rows of the table is left to a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from osenv import Clock
from servicekit.reconciler import Finding
from servicekit.transactions import TRANSACTIONS_KEEP_DAYS, LocalOutcome, TransactionCheck

DAY_MS = 86_400_000
# The cleaning may be a day behind, and clocks differ.
DECIDED_UNTIL_MS = (TRANSACTIONS_KEEP_DAYS - 1) * DAY_MS

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ParkedTransaction:
    """A transaction that nobody could answer for; `topic` and `keys` are those of its message."""

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
    """Implements `Check`: every parked transaction is a finding."""

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

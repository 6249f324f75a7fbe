"""Transactions as a transition table: prepared, then committed or rolled back, once (MISSION T1, T5, T9, T10).

Invariants: a transaction id leads to at most one open half message; a closed transaction never opens again, and asking
to end it again tells its first outcome and changes nothing; only a check that a living member answered with UNKNOW
counts; what is decided here takes effect only when `prepared` or `closed` says that the log has it.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import IntEnum

OUTCOMES_REMEMBERED = 100_000


class TransactionState(IntEnum):
    """RocketMQ's LocalTransactionState, with the wire's numbers."""

    UNKNOW = 0
    COMMIT_MESSAGE = 1
    ROLLBACK_MESSAGE = 2


class Phase(enum.Enum):
    """Where a transaction stands."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Action(enum.Enum):
    """What a request to end a transaction comes to."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    COUNT_CHECK = "count check"
    NOTHING = "nothing"


# (phase, what the producer says) -> what happens. A closed transaction stays as it is, whatever anybody says.
TRANSITIONS: dict[tuple[Phase, TransactionState], Action] = {
    (Phase.PREPARED, TransactionState.COMMIT_MESSAGE): Action.COMMIT,
    (Phase.PREPARED, TransactionState.ROLLBACK_MESSAGE): Action.ROLL_BACK,
    (Phase.PREPARED, TransactionState.UNKNOW): Action.COUNT_CHECK,
    **{(phase, state): Action.NOTHING for phase in (Phase.COMMITTED, Phase.ROLLED_BACK) for state in TransactionState},
}

OUTCOMES = {Phase.COMMITTED: TransactionState.COMMIT_MESSAGE, Phase.ROLLED_BACK: TransactionState.ROLLBACK_MESSAGE}


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    """RocketMQ's transactionCheckInterval, transactionTimeOut and transactionCheckMax (MISSION T8-T10)."""

    check_interval_ms: int = 60_000
    immunity_ms: int = 6_000
    check_times_max: int = 15


@dataclass(frozen=True, slots=True)
class OpenHalf:
    """A half message that waits for its end. Offsets are those of its newest copy."""

    transaction_id: str
    producer_group: str
    log_offset: int
    queue_offset: int
    op_offset: int  # end of the op queue when the first copy was stored: its op message can only stand behind
    first_store_ms: int  # of the first copy (MISSION T9)
    check_times: int = 0  # checks that were answered with UNKNOW


class TransactionTable:
    """All open halves, and the outcomes of the newest closed ones."""

    def __init__(self, *, check_times_max: int, outcomes_remembered: int = OUTCOMES_REMEMBERED) -> None:
        self.check_times_max = check_times_max
        self._outcomes_remembered = outcomes_remembered
        self._open: OrderedDict[str, OpenHalf] = OrderedDict()
        self._outcomes: OrderedDict[str, Phase] = OrderedDict()
        self.data_version = 0

    def open_half(self, transaction_id: str) -> OpenHalf | None:
        """The open half message of this transaction."""
        return self._open.get(transaction_id)

    def all_open(self) -> list[OpenHalf]:
        """Every open half, the oldest first."""
        return list(self._open.values())

    def phase(self, transaction_id: str) -> Phase | None:
        """Where the transaction stands; None when it is unknown here."""
        return Phase.PREPARED if transaction_id in self._open else self._outcomes.get(transaction_id)

    def decide(self, transaction_id: str, state: TransactionState, *, from_check: bool) -> Action | None:
        """What a producer's word comes to; None for a transaction that is unknown here."""
        phase = self.phase(transaction_id)
        if phase is None:
            return None
        action = TRANSITIONS[phase, state]
        if action is not Action.COUNT_CHECK:
            return action
        if not from_check:
            return Action.NOTHING  # the producer does not know yet; a check will ask again
        last = self._open[transaction_id].check_times + 1 >= self.check_times_max
        return Action.ROLL_BACK if last else Action.COUNT_CHECK

    def due_for_check(self, now_ms: int, *, immunity_ms: int) -> list[OpenHalf]:
        """Halves that have been open for longer than their immunity, the oldest first (MISSION T9)."""
        return [half for half in self._open.values() if now_ms - half.first_store_ms >= immunity_ms]

    def prepared(self, half: OpenHalf) -> None:
        """The log has this copy of a half message; a copy of a closed transaction is none of our business any more."""
        if half.transaction_id not in self._outcomes:
            before = self._open.get(half.transaction_id)
            self._open[half.transaction_id] = replace(half, op_offset=before.op_offset) if before else half
            self.data_version += 1

    def counted(self, transaction_id: str) -> None:
        """A living member has answered a check with UNKNOW."""
        half = self._open[transaction_id]
        self._open[transaction_id] = replace(half, check_times=half.check_times + 1)

    def closed(self, transaction_id: str, phase: Phase) -> None:
        """The log has the op message that closes this transaction."""
        self._open.pop(transaction_id, None)
        self.data_version += 1
        if transaction_id not in self._outcomes:
            self._outcomes[transaction_id] = phase
            if len(self._outcomes) > self._outcomes_remembered:
                self._outcomes.popitem(last=False)

    def scan_from(self, half_end: int, op_end: int) -> tuple[int, int]:
        """From where half and op queue have to be read to find all that is open now, given their present ends."""
        if not self._open:
            return half_end, op_end
        halves = self._open.values()
        return min(half.queue_offset for half in halves), min(half.op_offset for half in halves)

"""Transactions as transition tables: prepared, then committed, rolled back or parked (MISSION T1, T5, T9, T10).

Two speak: the producer, by itself or asked by a check, and the operator. What nobody could answer for is parked: for
its producer it is rolled back, and an operator may decide otherwise.

Invariants: a transaction id leads to at most one undecided half message; a committed or rolled back transaction stays
so, whatever anybody says, and asking to end it again tells its outcome; only the answer of a living member to a check
of ours counts; what is decided here takes effect only when `prepared`, `parked` or `closed` says that the log has it.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum

from mq_broker.core.half_columns import Half, HalfColumns

OUTCOMES_REMEMBERED = 100_000


class TransactionState(IntEnum):
    """RocketMQ's LocalTransactionState, with the wire's numbers."""

    UNKNOW = 0
    COMMIT_MESSAGE = 1
    ROLLBACK_MESSAGE = 2


class Phase(enum.Enum):
    """Where a transaction stands."""

    PREPARED = "prepared"
    PARKED = "parked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Action(enum.Enum):
    """What a request to end a transaction comes to."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    COUNT_CHECK = "count check"
    PARK = "park"
    NOTHING = "nothing"


Table = dict[tuple[Phase, TransactionState], Action]

_CLOSED = (Phase.COMMITTED, Phase.ROLLED_BACK)

# (phase, what the producer says) -> what happens. UNKNOW counts once for each check, and the last one of them parks.
TRANSITIONS: Table = {
    (Phase.PREPARED, TransactionState.COMMIT_MESSAGE): Action.COMMIT,
    (Phase.PREPARED, TransactionState.ROLLBACK_MESSAGE): Action.ROLL_BACK,
    (Phase.PREPARED, TransactionState.UNKNOW): Action.COUNT_CHECK,
    **{(phase, state): Action.NOTHING for phase in (Phase.PARKED, *_CLOSED) for state in TransactionState},
}

# (phase, what an operator says) -> what happens. An operator who does not know says nothing.
DECISIONS: Table = {
    **{(phase, TransactionState.COMMIT_MESSAGE): Action.COMMIT for phase in (Phase.PREPARED, Phase.PARKED)},
    **{(phase, TransactionState.ROLLBACK_MESSAGE): Action.ROLL_BACK for phase in (Phase.PREPARED, Phase.PARKED)},
    **{(phase, TransactionState.UNKNOW): Action.NOTHING for phase in (Phase.PREPARED, Phase.PARKED)},
    **{(phase, state): Action.NOTHING for phase in _CLOSED for state in TransactionState},
}

# What a transaction is for its producer; UNKNOW while it is open.
OUTCOMES = {
    Phase.PREPARED: TransactionState.UNKNOW,
    Phase.PARKED: TransactionState.ROLLBACK_MESSAGE,
    Phase.COMMITTED: TransactionState.COMMIT_MESSAGE,
    Phase.ROLLED_BACK: TransactionState.ROLLBACK_MESSAGE,
}


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    """RocketMQ's transactionCheckInterval, transactionTimeOut and transactionCheckMax (MISSION T8-T10)."""

    check_interval_ms: int = 60_000
    immunity_ms: int = 6_000
    check_times_max: int = 15


class TransactionTable:
    """All undecided halves, and the outcomes of the newest closed transactions."""

    def __init__(self, *, check_times_max: int, outcomes_remembered: int = OUTCOMES_REMEMBERED) -> None:
        self.check_times_max = check_times_max
        self._outcomes_remembered = outcomes_remembered
        self.open = HalfColumns()
        self.in_parking = HalfColumns()
        self._outcomes: OrderedDict[str, Phase] = OrderedDict()
        self.data_version = 0

    def open_half(self, transaction_id: str) -> Half | None:
        """The open half message of this transaction."""
        return self.open.get(transaction_id)

    def undecided(self, transaction_id: str) -> Half | None:
        """The half message of this transaction, open or parked."""
        return self.open.get(transaction_id) or self.in_parking.get(transaction_id)

    def all_open(self) -> list[Half]:
        """Every open half. A million of them takes a second: what goes on beside producers asks `open` in stretches."""
        return list(self.open)

    def phase(self, transaction_id: str) -> Phase | None:
        """Where the transaction stands; None when it is unknown here."""
        if transaction_id in self.open:
            return Phase.PREPARED
        if transaction_id in self.in_parking:
            return Phase.PARKED
        return self._outcomes.get(transaction_id)

    def decide(self, transaction_id: str, state: TransactionState, *, answers_check: bool) -> Action | None:
        """What a producer's word comes to; None for a transaction that is unknown here.

        `answers_check` says that a living member answers a check of ours with it.
        """
        phase = self.phase(transaction_id)
        if phase is None:
            return None
        action = TRANSITIONS[phase, state]
        if action is not Action.COUNT_CHECK:
            return action
        half = self.open.get(transaction_id)
        if half is None or not answers_check:
            return Action.NOTHING  # the producer does not know yet; a check will ask again
        return Action.PARK if half.check_times + 1 >= self.check_times_max else Action.COUNT_CHECK

    def decide_by_operator(self, transaction_id: str, state: TransactionState) -> Action | None:
        """What an operator's word comes to; None for a transaction that is unknown here."""
        phase = self.phase(transaction_id)
        return None if phase is None else DECISIONS[phase, state]

    def prepared(self, half: Half, op_begin: int) -> None:
        """The log has this copy of a half message, and the op queue ends at `op_begin`.

        A copy of a parked or closed transaction is none of our business any more.
        """
        if half.transaction_id not in self._outcomes and half.transaction_id not in self.in_parking:
            self.open.put(half, op_begin)
            self.data_version += 1

    def counted(self, transaction_id: str) -> None:
        """A living member has answered a check with UNKNOW."""
        self.open.count_check(transaction_id)

    def parked(self, half: Half) -> None:
        """The log has this copy of a parked half message; one of a closed transaction is none of our business."""
        if half.transaction_id not in self._outcomes:
            self.open.remove(half.transaction_id)
            self.in_parking.put(half, 0)
            self.data_version += 1

    def closed(self, transaction_id: str, phase: Phase) -> None:
        """The log has the op message that closes this transaction."""
        self.open.remove(transaction_id)
        self.in_parking.remove(transaction_id)
        self.data_version += 1
        if transaction_id not in self._outcomes:
            self._outcomes[transaction_id] = phase
            if len(self._outcomes) > self._outcomes_remembered:
                self._outcomes.popitem(last=False)

    def scan_from(self, half_end: int, op_end: int) -> tuple[int, int]:
        """From where half and op queue have to be read to find all that is open now, given their present ends."""
        return self.open.begins or (half_end, op_end)

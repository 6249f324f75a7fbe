"""Transactions as transition tables: prepared, then committed, rolled back or parked (mechanisms T1, T5, T9, T10)."""

from __future__ import annotations

import enum
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, TypeVar

from mq_broker.core import documents as tables

OUTCOMES_REMEMBERED = 100_000


class TransactionState(IntEnum):
    """RocketMQ's LocalTransactionState, with the wire's numbers."""

    UNKNOW = 0
    COMMIT_MESSAGE = 1
    ROLLBACK_MESSAGE = 2


class Phase(enum.Enum):
    """The phase of a transaction."""

    PREPARED = "prepared"
    PARKED = "parked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Action(enum.Enum):
    """The action for a request to end a transaction."""

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
    """RocketMQ's transactionCheckInterval, transactionTimeOut and transactionCheckMax (mechanisms T8-T10)."""

    check_interval_ms: int = 60_000
    immunity_ms: int = 6_000
    check_times_max: int = 15


class TransactionTable:
    """All undecided halves, and the outcomes of the newest closed transactions.

    Two may decide: the producer, by itself or asked by a check, and the operator. A transaction whose checks got no
    answer is parked: for its producer it is rolled back, and an operator may decide otherwise.

    Invariants: a transaction id leads to at most one undecided half message; a committed or rolled back transaction
    stays so, and a later request to end it is answered with its outcome; only the answer of an active member to a check
    of this broker counts; what is decided here takes effect only when `prepared`, `parked` or `closed` says that the
    log has it.
    """

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
        """The action for a producer's decision; None for a transaction that is unknown here.

        `answers_check` says that an active member answers a check of this broker with it.
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
        """The action for an operator's decision; None for a transaction that is unknown here."""
        phase = self.phase(transaction_id)
        return None if phase is None else DECISIONS[phase, state]

    def prepared(self, half: Half, op_begin: int) -> None:
        """The log has this copy of a half message, and the op queue ends at `op_begin`.

        A copy of a parked or closed transaction is ignored.
        """
        if half.transaction_id not in self._outcomes and half.transaction_id not in self.in_parking:
            self.open.put(half, op_begin)
            self.data_version += 1

    def counted(self, transaction_id: str) -> None:
        """An active member has answered a check with UNKNOW."""
        self.open.count_check(transaction_id)

    def parked(self, half: Half) -> None:
        """The log has this copy of a parked half message; one of a closed transaction is ignored."""
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


COHORT_SIZE = 1_024  # copies in a cohort: so many halves more, at most, are read at the next start
BROKERS_RULE = -1  # in the column of immunities


@dataclass(frozen=True, slots=True)
class Half:
    """A half message that waits for its end: for its producer, or, when it is parked, for an operator.

    `log_offset` is that of its newest copy, and `queue_offset` that copy's in the half queue. `first_store_ms` is when
    the first copy was stored (mechanism T9), `check_times` how many checks were answered with UNKNOW. `immunity_s` is
    how many seconds it is not asked for; None: as long as the broker's configuration says.
    """

    transaction_id: str
    producer_group: str
    log_offset: int
    queue_offset: int
    first_store_ms: int
    check_times: int = 0
    immunity_s: int | None = None


@dataclass(slots=True)
class _Cohort:
    """Where half and op queue ended when the first copy of these halves was written, and how many are left."""

    half_begin: int
    op_begin: int
    written: int = 0
    left: int = 0


class HalfColumns:
    """Undecided half messages, in columns: a million of them take about 250 bytes each, their ids included.

    A half keeps its slot as long as it is here, so that a pass over all of them can go in stretches of slots, with
    other work in between. What is older than every half is told by cohorts: halves whose newest copies were written one
    after the other.

    Invariants: an id has at most one slot; the newest copy of each half stands at or behind the beginning of its
    cohort, and so does every op message that can still close it; a cohort without halves is forgotten.
    """

    def __init__(self, cohort_size: int = COHORT_SIZE) -> None:
        self._cohort_size = cohort_size
        self._slots: dict[str, int] = {}
        self._free = array("q")
        self._ids: list[str | None] = []
        self._groups: list[str] = []
        self._log_offsets = array("q")
        self._queue_offsets = array("q")
        self._first_store_ms = array("q")
        self._cohort_of = array("q")
        self._check_times = array("i")
        self._immunities_s = array("i")
        self._rounds = array("i")  # the round of checks in which it was asked for last
        self._cohorts: dict[int, _Cohort] = {}
        self._newest_cohort = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, transaction_id: str) -> bool:
        return transaction_id in self._slots

    def __iter__(self) -> Iterator[Half]:
        """Every half; nothing may change meanwhile."""
        return (self._half(slot) for slot in self._slots.values())

    def get(self, transaction_id: str) -> Half | None:
        """The half of this transaction."""
        slot = self._slots.get(transaction_id)
        return None if slot is None else self._half(slot)

    def put(self, half: Half, op_begin: int) -> None:
        """The log has a copy of the half, the newest of all; the op queue ends at `op_begin`."""
        slot = self._slots.get(half.transaction_id)
        if slot is None:
            slot = self._slots[half.transaction_id] = self._new_slot(half)
        else:
            self._leave_cohort(slot)
        self._log_offsets[slot] = half.log_offset
        self._queue_offsets[slot] = half.queue_offset
        self._check_times[slot] = half.check_times
        self._cohort_of[slot] = self._join_cohort(half.queue_offset, op_begin)

    def count_check(self, transaction_id: str) -> None:
        """One check more was answered with UNKNOW."""
        self._check_times[self._slots[transaction_id]] += 1

    def asked(self, transaction_id: str, check_round: int) -> None:
        """It was asked for in this round of checks."""
        self._rounds[self._slots[transaction_id]] = check_round

    def remove(self, transaction_id: str) -> None:
        """Forget it; harmless for one that is not here."""
        slot = self._slots.pop(transaction_id, None)
        if slot is not None:
            self._leave_cohort(slot)
            self._ids[slot], self._groups[slot] = None, ""
            self._free.append(slot)

    @property
    def begins(self) -> tuple[int, int] | None:
        """Where no half stands before in the half queue, and no op message that could close one; None without any."""
        oldest = next(iter(self._cohorts.values()), None)
        return None if oldest is None else (oldest.half_begin, oldest.op_begin)

    # -------------------------------------------------------------------------------------------- in stretches of slots

    @property
    def slot_count(self) -> int:
        """Slots, of which some may be empty."""
        return len(self._ids)

    def between(self, begin: int, end: int) -> list[Half]:
        """The halves in the slots `begin` to `end` - 1."""
        return [self._half(slot) for slot in self._taken(begin, end)]

    def below(self, log_offset: int, begin: int, end: int) -> list[Half]:
        """Of the slots `begin` to `end` - 1, the halves whose newest copy stands below `log_offset` in the log."""
        offsets = self._log_offsets
        return [self._half(slot) for slot in self._taken(begin, end) if offsets[slot] < log_offset]

    def due(
        self, begin: int, end: int, *, now_ms: int, immunity_ms: int, check_round: int, is_there: Callable[[str], bool]
    ) -> list[Half]:
        """Of the slots `begin` to `end` - 1, the halves to be asked for in this round of checks (mechanism T9).

        They were not asked for in it yet, their immunity is over, and their group has a member.
        """
        groups, first, rounds, immunities = self._groups, self._first_store_ms, self._rounds, self._immunities_s
        found = []
        for slot in self._taken(begin, end):
            own_s = immunities[slot]
            immune_ms = immunity_ms if own_s == BROKERS_RULE else own_s * 1_000
            if now_ms - first[slot] >= immune_ms and rounds[slot] != check_round and is_there(groups[slot]):
                found.append(self._half(slot))
        return found

    # ------------------------------------------------------------------------------------------------------- plumbing

    def _taken(self, begin: int, end: int) -> Iterator[int]:
        ids = self._ids
        return (slot for slot in range(begin, min(end, len(ids))) if ids[slot] is not None)

    def _half(self, slot: int) -> Half:
        immunity_s = self._immunities_s[slot]
        return Half(
            self._ids[slot] or "",
            self._groups[slot],
            self._log_offsets[slot],
            self._queue_offsets[slot],
            self._first_store_ms[slot],
            self._check_times[slot],
            None if immunity_s == BROKERS_RULE else immunity_s,
        )

    def _new_slot(self, half: Half) -> int:
        """A slot with what stays the same as long as the half is here."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._ids)
            self._ids.append(None)
            self._groups.append("")
            for column in (self._log_offsets, self._queue_offsets, self._first_store_ms, self._cohort_of):
                column.append(0)
            for column in (self._check_times, self._immunities_s, self._rounds):
                column.append(0)
        self._ids[slot] = half.transaction_id
        self._groups[slot] = sys.intern(half.producer_group)
        self._first_store_ms[slot] = half.first_store_ms
        self._immunities_s[slot] = BROKERS_RULE if half.immunity_s is None else half.immunity_s
        self._rounds[slot] = 0
        return slot

    def _join_cohort(self, half_begin: int, op_begin: int) -> int:
        cohort = self._cohorts.get(self._newest_cohort)
        if cohort is None or cohort.written == self._cohort_size:
            self._newest_cohort += 1
            cohort = self._cohorts[self._newest_cohort] = _Cohort(half_begin, op_begin)
        cohort.written += 1
        cohort.left += 1
        return self._newest_cohort

    def _leave_cohort(self, slot: int) -> None:
        number = self._cohort_of[slot]
        cohort = self._cohorts[number]
        cohort.left -= 1
        if not cohort.left:
            del self._cohorts[number]


S = TypeVar("S")  # a session: whatever leads to the member

CHECKS_UNANSWERED_MAX = 2_000  # what a producer lets wait (mechanism T13)


@dataclass
class ChecksUnderWay(Generic[S]):
    """Checks without an answer: which member was asked, and how many each may owe.

    Invariants: of a transaction only the newest check is under way, and it is answered once; after a restart none is; a
    member that owes CHECKS_UNANSWERED_MAX answers in a round of checks is asked for nothing more in it, so that no more
    halves are written again than can be answered for.
    """

    _asked: dict[str, S] = field(default_factory=dict)
    _owing: dict[S, int] = field(default_factory=dict)  # answers, of this round

    def begin_round(self) -> None:
        """Members that owe answers of the last round may be asked again; a late answer still counts."""
        self._owing.clear()

    def ready(self, members: Iterable[S]) -> list[S]:
        """The members that can be asked for one more transaction."""
        return [member for member in members if self._owing.get(member, 0) < CHECKS_UNANSWERED_MAX]

    def asked(self, transaction_id: str, member: S) -> None:
        """The member was asked for the transaction."""
        self._asked[transaction_id] = member
        self._owing[member] = self._owing.get(member, 0) + 1

    def member(self, transaction_id: str) -> S | None:
        """The member that was asked for the transaction and has not answered."""
        return self._asked.get(transaction_id)

    def ended(self, transaction_id: str) -> None:
        """The check was answered, or the answer is not needed any more; harmless when none is under way."""
        member = self._asked.pop(transaction_id, None)
        if member is not None and (owing := self._owing.get(member)) is not None:
            self._owing[member] = max(0, owing - 1)


@dataclass
class TransactionScan:
    """From where the half and op queues are read at the next start, kept as transactionOffset.json.

    Where to begin. `ends` tells the present ends of the half queue and of the op queue.

    Invariant: every open half stands at or behind `half`, and every op message that could close one at or behind `op`.
    A replica has no table of what is open: there the document stays what it was, until a master reads on from it.
    """

    table: TransactionTable
    half: int = 0
    op: int = 0
    ends: Callable[[], tuple[int, int]] = lambda: (0, 0)
    follows: bool = False  # a replica

    @property
    def data_version(self) -> int:
        return self.table.data_version

    def to_json(self) -> dict[str, Any]:
        """The document."""
        half, op = (self.half, self.op) if self.follows else self.table.scan_from(*self.ends())
        return {"offsetTable": {"half": half, "op": op}}

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over a document. Raises KeyError, TypeError or ValueError when it is not of this form."""
        found = tables.table(document, "offsetTable")
        self.half, self.op = int(found["half"]), int(found["op"])

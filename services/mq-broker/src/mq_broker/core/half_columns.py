"""Half messages that nobody has decided, in columns: a million of them take about 250 bytes each, their ids included.

A half keeps its slot as long as it is here, so that whoever has to look at all of them can do it in stretches of slots
and let others have their turn in between. What is older than every half is told by cohorts: halves whose newest copies
were written one after the other.

Invariants: an id has at most one slot; the newest copy of each half stands at or behind the beginning of its cohort,
and so does every op message that can still close it; a cohort without halves is forgotten.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COHORT_SIZE = 1_024  # copies in a cohort: so many halves more, at most, are read at the next start
BROKERS_RULE = -1  # in the column of immunities


@dataclass(frozen=True, slots=True)
class Half:
    """A half message that waits for its end: for its producer, or, when it is parked, for an operator.

    `log_offset` is that of its newest copy, and `queue_offset` that copy's in the half queue. `first_store_ms` is when
    the first copy was stored (MISSION T9), `check_times` how many checks were answered with UNKNOW. `immunity_s` is how
    many seconds it is not asked for; None: as long as the broker's configuration says.
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
    """Halves by transaction id."""

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
        """Nobody waits for it any more; harmless for one that is not here."""
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
        """Of the slots `begin` to `end` - 1, the halves to be asked for in this round of checks (MISSION T9).

        They were not asked for in it yet, their immunity is over, and somebody of their group is there.
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

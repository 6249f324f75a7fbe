"""Epochs: who wrote which part of the log, and up to where two logs can be the same.

A master begins a new epoch whenever it starts, because a crash may have taken from its log what a slave still has; who
takes over from another master begins a new term. So no two masters ever write in the same epoch, and two logs that
agree on where an epoch began agree on everything up to the end of that epoch in the shorter of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple


class Epoch(NamedTuple):
    """Compared by term, then by start."""

    term: int
    start: int

    def __str__(self) -> str:
        return f"{self.term}.{self.start}"


NO_EPOCH = Epoch(0, 0)  # of a store that no master has written since there are epochs


class EpochBegin(NamedTuple):
    """From this log offset on records were written in this epoch, until the next one begins."""

    epoch: Epoch
    log_offset: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The epochs of one log.

    Invariants: epochs ascend; offsets never descend; none is negative. Raises ValueError when they do not hold.
    """

    begins: tuple[EpochBegin, ...] = ()

    def __post_init__(self) -> None:
        for begin in self.begins:
            if min(begin.log_offset, *begin.epoch) < 0:
                raise ValueError(f"epoch {begin.epoch} from offset {begin.log_offset}: nothing may be negative")
        for before, after in pairwise(self.begins):
            if before.epoch >= after.epoch or before.log_offset > after.log_offset:
                raise ValueError(f"epoch {after.epoch} cannot follow {before.epoch} at offset {after.log_offset}")

    @property
    def newest(self) -> Epoch:
        """The epoch in which the log's end was written."""
        return self.begins[-1].epoch if self.begins else NO_EPOCH

    def begun(self, epoch: Epoch, log_offset: int) -> EpochHistory:
        """With a new epoch from this offset on; epochs in which nothing was written are forgotten."""
        kept = tuple(begin for begin in self.begins if begin.log_offset < log_offset)
        return EpochHistory((*kept, EpochBegin(epoch, log_offset)))

    def cut(self, end: int) -> EpochHistory:
        """Of a log that ends here now."""
        return EpochHistory(tuple(begin for begin in self.begins if begin.log_offset < end))

    def without(self, begin: int) -> EpochHistory:
        """Of a log whose first files are gone: epochs that ended below `begin` are forgotten."""
        ended = [one for one, after in pairwise(self.begins) if after.log_offset <= begin]
        return EpochHistory(self.begins[len(ended) :])

    def end_of(self, index: int, log_end: int) -> int:
        """Where the epoch at this place ends."""
        return self.begins[index + 1].log_offset if index + 1 < len(self.begins) else log_end


def common_end(mine: EpochHistory, my_end: int, theirs: EpochHistory, their_end: int) -> int:
    """Up to where two logs are the same, as far as their epochs can tell.

    The newest epoch that began at the same offset in both decides. Where one of them knows no epochs, as a store that
    was restored, only the bytes themselves can tell: then it is the end of the shorter log. Where they have none in
    common, they can only be the same where one of them knows no epochs, before its first: a master whose store was
    restored has begun one at the end of what it was given.
    """
    ends = {begin: theirs.end_of(index, their_end) for index, begin in enumerate(theirs.begins)}
    for index in reversed(range(len(mine.begins))):
        begin = mine.begins[index]
        if begin in ends:
            return min(mine.end_of(index, my_end), ends[begin])
    shorter = min(my_end, their_end)
    if not mine.begins or not theirs.begins:
        return shorter
    return min(shorter, max(mine.begins[0].log_offset, theirs.begins[0].log_offset))


def history_from_json(value: Any) -> EpochHistory:
    """The inverse of `history_to_json`. Raises ValueError, TypeError."""
    return EpochHistory(tuple(EpochBegin(Epoch(int(term), int(start)), int(at)) for term, start, at in value))


def history_to_json(history: EpochHistory) -> list[list[int]]:
    """[term, start, log offset] of each epoch."""
    return [[*begin.epoch, begin.log_offset] for begin in history.begins]

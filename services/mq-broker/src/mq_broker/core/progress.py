"""What a group has finished of one queue: a set of offsets that only grows (MISSION C20, C21).

Everything below `offset` is in it, and the ranges beyond. What is reported is added as a union: a report that is late
or comes twice changes nothing, because what a member says is finished is finished. Only who sets the offset anew takes
something out; then `version` grows by one, and who reports with another version speaks of a set that is no more.

Invariants: offset and version are not negative; no range is empty; the ranges ascend, are apart from each other, and
begin behind `offset`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

RANGES_MAX = 4_096  # of one queue; never keep as much as a client names (RELIABILITY.md)
VERSION_MAX = (1 << 62) - 1  # a reset a nanosecond for a century

Range = tuple[int, int]  # first offset, and the one behind the last


@dataclass(frozen=True, slots=True)
class Progress:
    """One queue's progress; `offset` is the next message to be consumed, were there no ranges."""

    offset: int
    ranges: tuple[Range, ...] = ()
    version: int = 0

    def __contains__(self, offset: int) -> bool:
        """Whether the message with this offset is finished."""
        if offset < self.offset:
            return True
        at = bisect_right(self.ranges, offset, key=_begin) - 1
        return at >= 0 and offset < self.ranges[at][1]

    @property
    def end(self) -> int:
        """The offset behind everything that is finished."""
        return self.ranges[-1][1] if self.ranges else self.offset

    @property
    def finished_beyond(self) -> int:
        """How many messages beyond `offset` are finished."""
        return sum(end - begin for begin, end in self.ranges)

    def check(self) -> None:
        """Raise ValueError with what is allowed when an invariant does not hold, or there are too many ranges."""
        if self.offset < 0:
            raise ValueError(f"offset {self.offset}; allowed are 0 and more")
        if not 0 <= self.version <= VERSION_MAX:
            raise ValueError(f"version {self.version}; allowed are 0 to {VERSION_MAX}")
        if len(self.ranges) > RANGES_MAX:
            raise ValueError(f"{len(self.ranges)} finished ranges; allowed are at most {RANGES_MAX}")
        for begin, end in self.ranges:
            if not self.offset < begin < end:
                raise ValueError(f"the finished range {begin} to {end} is empty, or not beyond offset {self.offset}")
        for before, after in pairwise(self.ranges):
            if after[0] <= before[1]:
                raise ValueError(f"the finished range from {after[0]} on is not apart from the one before it")

    def merged(self, reported: Progress) -> Progress:
        """What is finished in either. Raises ValueError when the versions differ."""
        if reported.version != self.version:
            raise ValueError(f"version {reported.version} has nothing to do with version {self.version}")
        offset = max(self.offset, reported.offset)
        if not self.ranges and not reported.ranges:
            return self if offset == self.offset else Progress(offset, (), self.version)
        return Progress(*_union(offset, (*self.ranges, *reported.ranges)), self.version)

    def set_to(self, offset: int) -> Progress:
        """Exactly here, and nothing beyond; reports from before do not count any more."""
        return Progress(offset, (), self.version + 1)

    def renewed(self) -> Progress:
        """The same, but reports from before do not count any more."""
        return Progress(self.offset, self.ranges, self.version + 1)

    def cut(self, end: int) -> Progress:
        """Without what is not below `end`."""
        if self.end <= end:
            return self
        ranges = tuple((begin, min(stop, end)) for begin, stop in self.ranges if begin < end)
        return Progress(min(self.offset, end), ranges, self.version)


def _begin(one: Range) -> int:
    return one[0]


def _union(offset: int, ranges: Iterable[Range]) -> tuple[int, tuple[Range, ...]]:
    """Offset and ranges that say the same in the normal form."""
    joined: list[Range] = []
    for begin, end in sorted(ranges):
        if begin <= offset:
            offset = max(offset, end)
        elif joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return offset, tuple(joined)

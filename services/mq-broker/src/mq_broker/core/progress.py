"""What a group has finished of one queue: a set of offsets that only grows (MISSION C20, C21).

Everything below `offset` is in it, and the ranges beyond. What is reported is added as a union: a report that is late
or comes twice changes nothing, because what a member says is finished is finished. Only who sets the offset anew takes
something out; then `version` grows, and who reports with another version speaks of a set that is no more.

A version is two counts in one number. `resets` is how often the offset was set anew: of two brokers' sets of one queue
the one with more resets holds, and between equal ones what either has finished is finished. `renewals` is how often a
broker began whose log may lack what members have got: it takes nothing out, it only has the members ask anew what is
finished, because the numbers of what is lost are given again. Members report with both; brokers compare the resets.

Invariants: offset and version are not negative; no range is empty; the ranges ascend, are apart from each other, and
begin behind `offset`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from mq_broker.core.limits import RANGES_PER_QUEUE_MAX

VERSION_MAX = (1 << 62) - 1
RESETS_BITS = 40  # of a version, the lower ones: a thousand resets a second for 30 years
RESETS_MAX = (1 << RESETS_BITS) - 1

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

    @property
    def resets(self) -> int:
        """How often the offset was set anew."""
        return self.version & RESETS_MAX

    @property
    def renewals(self) -> int:
        """How often members had to ask anew what is finished."""
        return self.version >> RESETS_BITS

    def has_renewals_of(self, version: int) -> bool:
        """Whether a member with this version has got its messages from the log that the broker has now."""
        return self.renewals == version >> RESETS_BITS

    def check(self) -> None:
        """Raise ValueError with what is allowed when an invariant does not hold, or there are too many ranges."""
        if self.offset < 0:
            raise ValueError(f"offset {self.offset}; allowed are 0 and more")
        if not 0 <= self.version <= VERSION_MAX:
            raise ValueError(f"version {self.version}; allowed are 0 to {VERSION_MAX}")
        if len(self.ranges) > RANGES_PER_QUEUE_MAX:
            raise ValueError(f"{len(self.ranges)} finished ranges; allowed are at most {RANGES_PER_QUEUE_MAX}")
        for begin, end in self.ranges:
            if not self.offset < begin < end:
                raise ValueError(f"the finished range {begin} to {end} is empty, or not beyond offset {self.offset}")
        for before, after in pairwise(self.ranges):
            if after[0] <= before[1]:
                raise ValueError(f"the finished range from {after[0]} on is not apart from the one before it")

    def merged(self, reported: Progress) -> Progress:
        """What is finished in either; of more ranges than are kept the last ones are forgotten.

        Raises ValueError when the versions differ.
        """
        if reported.version != self.version:
            raise ValueError(f"version {reported.version} has nothing to do with version {self.version}")
        offset = max(self.offset, reported.offset)
        if not self.ranges and not reported.ranges:
            return self if offset == self.offset else Progress(offset, (), self.version)
        offset, ranges = _union(offset, (*self.ranges, *reported.ranges))
        return Progress(offset, ranges[:RANGES_PER_QUEUE_MAX], self.version)

    def set_to(self, offset: int, resets_min: int = 0) -> Progress:
        """Exactly here, and nothing beyond, with so many resets at least; reports from before do not count any more."""
        return Progress(offset, (), version_of(self.renewals, max(self.resets + 1, resets_min)))

    def renewed(self, renewals: int) -> Progress:
        """The same, with at least so many renewals: reports from before do not count any more."""
        return Progress(self.offset, self.ranges, version_of(max(self.renewals, renewals), self.resets))

    def with_resets(self, resets: int) -> Progress:
        """The same, with at least so many resets: of another broker's set, one with fewer does not count."""
        return Progress(self.offset, self.ranges, version_of(self.renewals, max(self.resets, resets)))

    def reconciled(self, other: Progress) -> Progress:
        """What holds when another broker says `other` of the same queue.

        Whatever the order in which brokers hear of each other, and however often, they come to the same; of more ranges
        than are allowed the last ones are forgotten.
        """
        renewals = max(self.renewals, other.renewals)
        if self.resets != other.resets:
            return max(self, other, key=lambda one: one.resets).renewed(renewals)
        offset, ranges = _union(max(self.offset, other.offset), (*self.ranges, *other.ranges))
        return Progress(offset, ranges[:RANGES_PER_QUEUE_MAX], version_of(renewals, self.resets))

    def cut(self, end: int) -> Progress:
        """Without what is not below `end`."""
        if self.end <= end:
            return self
        ranges = tuple((begin, min(stop, end)) for begin, stop in self.ranges if begin < end)
        return Progress(min(self.offset, end), ranges, self.version)


def version_of(renewals: int, resets: int) -> int:
    """The version with these two counts."""
    return renewals << RESETS_BITS | resets


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

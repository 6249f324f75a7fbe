"""Ranges of offsets, and how they become Spark's input partitions (MISSION Y1).

Invariant: splitting covers every offset exactly once; the parts of a queue follow each other, and none is empty.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from mqclient import MessageQueue


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets from `start` to before `end`."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.queue} from offset {self.start} to before {self.end}"


def split(
    ranges: Iterable[OffsetRange], *, min_partitions: int = 0, max_records_per_partition: int = 0
) -> list[OffsetRange]:
    """At least `min_partitions` parts, as far as there are offsets; none with more than the most records; 0: no bound.

    What is split is always the range with the largest parts, so that they become alike.
    """
    wanted = [one for one in ranges if one.size > 0]
    most = max_records_per_partition
    parts = [-(-one.size // most) if most else 1 for one in wanted]
    missing = min(min_partitions, sum(one.size for one in wanted)) - sum(parts)
    heap = [(-one.size / count, number) for number, (one, count) in enumerate(zip(wanted, parts, strict=True))]
    heapq.heapify(heap)
    for _ in range(missing):
        _, number = heap[0]
        parts[number] += 1
        size = wanted[number].size
        heapq.heapreplace(heap, (-size / parts[number] if parts[number] < size else 0.0, number))
    return [part for one, count in zip(wanted, parts, strict=True) for part in _cut(one, count)]


def _cut(one: OffsetRange, count: int) -> list[OffsetRange]:
    ends = [one.start + one.size * number // count for number in range(count + 1)]
    return [OffsetRange(one.queue, start, end) for start, end in itertools.pairwise(ends)]

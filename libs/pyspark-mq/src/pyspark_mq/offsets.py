"""Offsets of queues as JSON, {"topic": {"broker": {"queue id": number}}}, and ranges of them (mechanisms Y1, Y2).

Spark's checkpoint keeps them, users write them into options, and each is a Mapping of MessageQueue inside. Ranges
become Spark's input partitions.

Invariants: equal offsets make equal text, because Spark compares text: topics, brokers and queue ids are sorted.
Splitting covers every offset exactly once; the parts of a queue follow each other, and none is empty.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mqclient import MessageQueue
from pyspark_mq.errors import OptionError

EXAMPLE = '{"orders": {"broker-a": {"0": 17, "1": -2}}}'

Offsets = Mapping[MessageQueue, int]
OffsetsJson = dict[str, dict[str, dict[str, int]]]


def to_json(offsets: Offsets) -> OffsetsJson:
    """What `from_json` reads."""
    found: OffsetsJson = {}
    for queue in sorted(offsets):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return found


def from_json(tree: Any, what: str) -> dict[MessageQueue, int]:
    """The inverse. `what` is the name of the option, for the error. Raises OptionError."""
    found: dict[MessageQueue, int] = {}
    try:
        for topic, brokers in tree.items():
            for broker, queues in brokers.items():
                for queue_id, number in queues.items():
                    if type(number) is not int or not queue_id.isdecimal():
                        raise TypeError  # noqa: TRY301 - one sentence for every way to be wrong
                    found[MessageQueue(topic, broker, int(queue_id))] = number
    except (AttributeError, TypeError):
        raise OptionError(f"{what} is {json.dumps(tree)}; write it like {EXAMPLE}") from None
    return found


def parse_json(text: str, what: str) -> Any:
    """The JSON of an option. Raises OptionError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"{what} is no JSON ({error}); write it like {EXAMPLE}") from None


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

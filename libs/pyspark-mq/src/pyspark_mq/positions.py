"""Where a read begins or ends: a place of every queue, named in one of five ways (MISSION Y1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mqclient import MessageQueue

LATEST_OFFSET = -1  # in JSON, as in Spark's Kafka source
EARLIEST_OFFSET = -2


class PositionKind(StrEnum):
    """How the places are named."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"  # one for each queue, -2 for its first, -1 for its end
    TIMESTAMP = "timestamp"  # the first message stored at or after one time, milliseconds since 1970
    TIMESTAMPS = "timestamps"  # the same with a time for each queue


class NoMatchStrategy(StrEnum):
    """What a beginning by time means in a queue that has no message of that time or later."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Position:
    """`option` is what the user has set, for errors. `numbers` are offsets or times, by `kind`."""

    kind: PositionKind
    option: str
    timestamp_ms: int = 0
    numbers: Mapping[MessageQueue, int] = field(default_factory=dict)
    strategy: NoMatchStrategy = NoMatchStrategy.LATEST

    @property
    def is_by_time(self) -> bool:
        return self.kind in (PositionKind.TIMESTAMP, PositionKind.TIMESTAMPS)

    @property
    def names_queues(self) -> bool:
        """Whether it says something for single queues, and so has to for all."""
        return self.kind in (PositionKind.OFFSETS, PositionKind.TIMESTAMPS)

    def time_of(self, queue: MessageQueue) -> int:
        """Milliseconds since 1970; of a position by time."""
        return self.numbers[queue] if self.kind is PositionKind.TIMESTAMPS else self.timestamp_ms

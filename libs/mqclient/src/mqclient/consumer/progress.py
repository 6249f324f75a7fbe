"""How far a group has come in one queue: what a consumer reports, and where it begins (MISSION C20, C21).

Invariant: the ranges ascend, are apart from each other, and lie beyond the offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.message import MessageQueue

RANGES_MAX = 4_096  # of one queue, as many as brokers keep: what is finished behind them comes again after a crash


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything below `offset` is finished, and so are the ranges [begin, end).

    `version` grows each time that somebody sets the offset anew; what is reported with another one does not count.
    What was sent back is finished because its retry stands in the log: it depends on the broker's log up to `log_end`.
    """

    offset: int
    finished: tuple[tuple[int, int], ...] = ()
    version: int = 0
    log_end: int = 0

    def differs_from(self, version: int, *, only_newer: bool) -> bool:
        """Whether somebody has set the offset anew; with `only_newer`, an older version is one that is late."""
        return self.version > version if only_newer else self.version != version


def from_wire(
    answer: broker_pb.QueueProgress | broker_pb.QueryConsumerOffsetResponse,
) -> Progress:
    """What a broker says."""
    finished = tuple((one.begin, one.end) for one in answer.finished)
    return Progress(answer.offset, finished, answer.version, answer.log_end)


def of_queues(broker_name: str, queues: Iterable[broker_pb.QueueProgress]) -> dict[MessageQueue, Progress]:
    """What the broker of this name says of its queues."""
    return {MessageQueue(one.topic, broker_name, one.queue_id): from_wire(one) for one in queues}


def to_wire(queue: MessageQueue, progress: Progress) -> broker_pb.QueueProgress:
    """What a broker is told of the queue."""
    return broker_pb.QueueProgress(
        topic=queue.topic,
        queue_id=queue.queue_id,
        offset=progress.offset,
        finished=[broker_pb.OffsetRange(begin=begin, end=end) for begin, end in progress.finished],
        version=progress.version,
        log_end=progress.log_end,
    )


def gaps_between(offsets: Iterable[int], end: int) -> tuple[tuple[int, int], ...]:
    """The ranges below `end` that lie between the ascending offsets: what is finished behind what is not.

    Of more than RANGES_MAX the lowest ones, which the offset reaches first.
    """
    gaps: list[tuple[int, int]] = []
    following: int | None = None
    for offset in offsets:
        if following is not None and offset > following:
            gaps.append((following, offset))
            if len(gaps) == RANGES_MAX:
                return tuple(gaps)
        following = offset + 1
    if following is not None and following < end:
        gaps.append((following, end))
    return tuple(gaps)


class FinishedBefore:
    """The ranges that the group had finished when this consumer took the queue over; asked in ascending order."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = list(reversed(ranges))

    def __contains__(self, offset: int) -> bool:
        ranges = self._ranges
        while ranges and ranges[-1][1] <= offset:
            ranges.pop()
        return bool(ranges) and ranges[-1][0] <= offset

    def __bool__(self) -> bool:
        return bool(self._ranges)

"""Which records a pull gets: from consume-queue entries to ranges of the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.progress import Progress
from mq_broker.core.tag_filter import TagFilter
from mqproto.codes import ExpressionType, PullStatus, ResponseCode

PULL_MESSAGES_MAX = 1_024  # never allocate by a number that a client names (RELIABILITY.md)
PULL_BYTES_MAX = 1024 * 1024
SCAN_ENTRIES_MAX = 8_192  # how far one pull may look for a tag before it answers NO_MATCHED_MSG


@dataclass(slots=True)
class PullQuery:
    """What a consumer asks of one queue; `client` is its connection, which a new group counts for.

    `version` is of the progress from which it goes on; None for a consumer that keeps its offsets itself.

    It and the answer never change. They are not frozen: each poll needs both, and frozen ones take three times as long
    to make.
    """

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_messages: int
    max_bytes: int
    expression: str
    expression_type: str = ExpressionType.TAG
    client: str = ""
    version: int | None = None


@dataclass(slots=True)
class PullResult:
    """The answer. `records` lie end to end; `next_begin_offset` is where to go on, whatever the status.

    `progress`, with OFFSET_ILLEGAL, is what the group has finished, when that has another version than the consumer's.
    """

    code: ResponseCode = ResponseCode.SUCCESS
    remark: str = ""
    status: PullStatus = PullStatus.UNSPECIFIED
    next_begin_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    count: int = 0
    records: bytes = b""
    suggest_broker_id: int = 0  # who should be asked next time
    progress: Progress | None = None


@dataclass(slots=True)
class Selection:
    """Ranges of the log, (offset, size), neighbours joined, that hold `count` wanted records.

    `log_offset` is where the last of the `scanned` records begins.
    """

    ranges: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0
    scanned: int = 0
    log_offset: int = 0


def select(entries: bytes, tags: TagFilter, *, max_messages: int, max_bytes: int, readable_end: int) -> Selection:
    """Walk consume-queue entries in order; stop at what is not readable yet, or when enough is found.

    At least one record is selected when one matches, however large it is.
    """
    codes, ranges = tags.codes, list[tuple[int, int]]()
    count = scanned = taken = newest = 0
    begin = end = -1  # of the range that the last wanted record is in
    for log_offset, size, tags_code in CQ_ENTRY.iter_unpack(entries):
        if log_offset + size > readable_end:
            break
        if codes is None or tags_code in codes:  # `tags.passes`, without a call for each record
            if count and (count >= max_messages or taken + size > max_bytes):
                break
            if log_offset != end:
                if count:
                    ranges.append((begin, end - begin))
                begin = log_offset
            end = log_offset + size
            count += 1
            taken += size
        scanned += 1
        newest = log_offset
    if count:
        ranges.append((begin, end - begin))
    return Selection(ranges, count, scanned, newest)

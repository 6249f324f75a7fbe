"""From the files of a stopped broker to a store that can go on (MISSION S6-S8).

The log decides. Below the checkpoint, log and consume queues were durable together; from there on the log is read
again, record by record, up to the first one that is not whole, and everything that hangs on it is told anew.

Invariants: no record that was durable is cut; what is cut is gone from the log and from every consume queue; running
recovery again, or crashing in it and running it again, gives the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.rewrite import entry_tags_code
from mq_broker.store.checkpoint import Checkpoint
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.errors import StoreDamagedError
from mq_broker.store.segment_files import SegmentFiles
from mqproto.properties import PropertiesError
from mqproto.record import (
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    SEGMENT_HEAD,
    Record,
    RecordError,
    decode_record,
    is_sealed,
)

log = logging.getLogger(__name__)

READ_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found."""

    scanned_from: int = 0
    log_end: int = 0
    records: int = 0
    newest_store_ms: int = 0
    rebuilt: bool = False


def recover(
    commit_log: CommitLog,
    files: SegmentFiles,
    queues: dict[tuple[str, int], ConsumeQueue],
    open_queue: Callable[[str, int], ConsumeQueue],
    checkpoint: Checkpoint | None,
    *,
    rebuild: bool,
    on_record: Callable[[Record], None],
) -> RecoveryReport:
    """Find the log's end, cut what is torn, and bring the consume queues up to it.

    `on_record` sees every record that is read again, in order. With `rebuild` everything is read, from the first file.
    Raises StoreDamagedError when a record is broken that had been durable.
    """
    durable = checkpoint.log_offset if checkpoint else 0
    report = RecoveryReport(newest_store_ms=checkpoint.newest_store_ms if checkpoint else 0)
    if not rebuild and checkpoint is not None and _queues_agree(queues, checkpoint, commit_log, files):
        report.scanned_from = max(checkpoint.log_offset, files.begin)
    else:
        report.rebuilt, report.scanned_from = True, files.begin
        for queue in queues.values():
            queue.wipe()
    fresh: dict[tuple[str, int], list[bytes]] = {}
    report.log_end = report.scanned_from
    for record, end in scan(files, report.scanned_from):
        if record is not None:
            _dispatch(record, queues, open_queue, fresh)
            on_record(record)
            report.records += 1
            report.newest_store_ms = max(report.newest_store_ms, record.store_timestamp_ms)
        report.log_end = end
    if report.log_end < durable:
        raise StoreDamagedError(
            f"the commit log is broken at offset {report.log_end}, but was durable up to {durable}; "
            "the log has not been touched; restore the file that holds this offset"
        )
    for key, entries in fresh.items():
        queues[key].append(b"".join(entries))
    commit_log.recovered(report.log_end, durable_end=durable)
    return report


def scan(files: SegmentFiles, start: int) -> Iterator[tuple[Record | None, int]]:
    """Each whole record from `start` on with the offset behind it; a blank at a file's end counts as (None, offset).

    Ends at the first bytes that are neither.
    """
    at = start
    while at < files.capacity_end:
        block = files.read(min(READ_BYTES, files.room(at)), at)
        used = 0
        while (step := _step(block, used, at + used, files.room(at + used))) is not None:
            record, size = step
            used += size
            yield record, at + used
            if record is None:
                break
        if used == 0:
            if len(block) == files.room(at) or len(block) < READ_BYTES:
                return
            size = SEGMENT_HEAD.unpack_from(block, 0)[0]
            if not READ_BYTES < size <= min(RECORD_BYTES_MAX, files.room(at)):
                return
            whole = _step(files.read(size, at), 0, at, files.room(at))  # one record larger than a block
            if whole is None:
                return
            used = whole[1]
            yield whole[0], at + used
        at += used


def _step(block: bytes, at: int, log_offset: int, room: int) -> tuple[Record | None, int] | None:
    """The record or blank at `at` of the block with its size, or None when there is none, or not all of it."""
    if len(block) - at < SEGMENT_HEAD.size:
        return None
    size, magic = SEGMENT_HEAD.unpack_from(block, at)
    if magic == BLANK_MAGIC and size == room:
        return None, room
    if magic != MESSAGE_MAGIC or not RECORD_BYTES_MIN <= size <= len(block) - at or not is_sealed(block, at, size):
        return None
    try:
        record = decode_record(block, at)
    except RecordError:
        return None
    return (record, size) if record.log_offset == log_offset else None


def _queues_agree(
    queues: dict[tuple[str, int], ConsumeQueue], checkpoint: Checkpoint, commit_log: CommitLog, files: SegmentFiles
) -> bool:
    """Whether the consume queues hold all that the checkpoint says they do; brings each to its end on the way."""
    if not commit_log.begin <= checkpoint.log_offset <= files.capacity_end:
        log.error("the checkpoint speaks of offset %d, which the log does not have", checkpoint.log_offset)
        return False
    for queue in queues.values():
        queue.recover(checkpoint.log_offset)
    found = sum(queue.max_offset for queue in queues.values())
    if found != checkpoint.entry_count:
        log.error("consume queues hold %d entries, not %d: rebuilding them", found, checkpoint.entry_count)
    return found == checkpoint.entry_count


def _dispatch(
    record: Record,
    queues: dict[tuple[str, int], ConsumeQueue],
    open_queue: Callable[[str, int], ConsumeQueue],
    fresh: dict[tuple[str, int], list[bytes]],
) -> None:
    key = (record.topic, record.queue_id)
    queue = queues.get(key) or open_queue(*key)
    entries = fresh.setdefault(key, [])
    if not entries and queue.max_offset == queue.min_offset == 0 and record.queue_offset > 0:
        queue.begin_at(record.queue_offset)  # the log's beginning has been deleted
    if record.queue_offset != queue.max_offset + len(entries):
        raise StoreDamagedError(
            f"the record at log offset {record.log_offset} is number {record.queue_offset} of queue {record.queue_id} "
            f"of {record.topic}, where number {queue.max_offset + len(entries)} was expected"
        )
    try:
        code = entry_tags_code(record)
    except (PropertiesError, ValueError) as error:
        raise StoreDamagedError(f"the record at log offset {record.log_offset}: {error}") from error
    entries.append(CQ_ENTRY.pack(record.log_offset, record.size, code))

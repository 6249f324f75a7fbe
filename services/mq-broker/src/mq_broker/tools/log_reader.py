"""The commit log from its first file to its last, damage and the torn end included.

Invariants: what is found covers the log without a gap, in order; the last thing found is the Tail, and nothing else is
one. The log ends where the Tail begins. No more than a few blocks of the log are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from mq_broker.store.commit_log import SegmentFiles
from mq_broker.store.log_scan import Blank, Damage, explain, scan_log, scan_whole
from mq_broker.tools.stored_files import StoredFiles
from mqproto.record import (
    MESSAGE_MAGIC,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    SEGMENT_HEAD,
    Record,
    RecordError,
    decode_record,
    is_sealed,
)

READ_BYTES = 4 * 1024 * 1024
_ZEROS = memoryview(bytes(READ_BYTES))


@dataclass(frozen=True, slots=True)
class Tail:
    """What lies behind the log's end: `written` bytes that are not whole records of the log, then zeros."""

    log_offset: int
    written: int
    reason: str


Found = Record | Blank | Damage | Tail


def read_log(files: StoredFiles, start: int, durable_end: int) -> Iterator[Found]:
    """Everything from `start` on.

    Below `durable_end` bytes that are no record are damage, and what follows them is read; above it they are the log's
    end, as recovery sees it. Raises OSError.
    """
    at = start
    for found in scan_log(_as_segments(files), at, min(durable_end, files.capacity_end)):
        yield _named(files, found) if isinstance(found, Damage) else found
        at = found.log_offset + found.size
    for whole in scan_whole(_as_segments(files), at, files.capacity_end):
        yield whole
        at = whole.log_offset + whole.size
    written = _written(files, at)
    yield Tail(at, written, explain(_as_segments(files), at) if written else "")


def first_from(files: StoredFiles, start: int) -> int | None:
    """Where the first record or blank at `start` or behind it begins; None when there is none. Raises OSError."""
    first = next(scan_log(_as_segments(files), start, files.data_end), None)
    if isinstance(first, Damage):
        return first.end if first.end < files.data_end else None
    return start if first is not None else None


def record_at(files: StoredFiles, log_offset: int) -> Record | None:
    """The whole record that stands there, None when there is none. Raises OSError."""
    if not files.begin <= log_offset <= files.capacity_end - SEGMENT_HEAD.size:
        return None
    size, magic = SEGMENT_HEAD.unpack(files.read(SEGMENT_HEAD.size, log_offset))
    if magic != MESSAGE_MAGIC or not RECORD_BYTES_MIN <= size <= min(RECORD_BYTES_MAX, files.room(log_offset)):
        return None
    data = files.read(size, log_offset)
    try:
        record = decode_record(data) if is_sealed(data, 0, size) else None
    except RecordError:
        return None
    return record if record is not None and record.log_offset == log_offset else None


def _as_segments(files: StoredFiles) -> SegmentFiles:
    return cast("SegmentFiles", files)  # scanning only reads, and StoredFiles reads as SegmentFiles does


def _named(files: StoredFiles, damage: Damage) -> Damage:
    return replace(damage, reason="the file is missing") if files.is_missing(damage.log_offset) else damage


def _written(files: StoredFiles, start: int) -> int:
    """How many bytes from `start` on there are up to the last one that is not zero."""
    written = 0
    for at in range(start, files.data_end, READ_BYTES):
        block = files.read(min(READ_BYTES, files.data_end - at), at)
        if block != _ZEROS[: len(block)]:
            written = at + len(block.rstrip(b"\0")) - start
    return written

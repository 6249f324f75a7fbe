"""The commit log read from end to end, past what is broken (RELIABILITY.md (a), bit flips).

A record counts only when all of it is right: size, magic, its own physical offset and both CRCs. After bytes that are
neither a record nor a blank, reading goes on at the next place where one stands; a body that looks like a record does
not, because it would have to name the offset at which it lies. A sealed frame at its place that this version cannot
take apart was written whole: it is damage of exactly its size, and never the torn end of the log.

Invariant: what is found covers the range without a gap and without overlap, in order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from mq_broker.store.segment_files import SegmentFiles
from mqproto.record import (
    BLANK_MAGIC,
    CRC_BYTES,
    CRC_MASK,
    CRC_PREFIX,
    MESSAGE_MAGIC,
    OFFSETS,
    OFFSETS_AT,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    SEGMENT_HEAD,
    Record,
    RecordError,
    decode_record,
    is_sealed,
)

READ_BYTES = 4 * 1024 * 1024
_MAGICS = tuple((magic & 0xFFFF_FFFF).to_bytes(4, "big") for magic in (MESSAGE_MAGIC, BLANK_MAGIC))
_MAGIC_AT = 4


@dataclass(frozen=True, slots=True)
class Blank:
    """The rest of a file, closed because the next record did not fit."""

    log_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the log that are neither record nor blank."""

    log_offset: int
    size: int
    reason: str

    @property
    def end(self) -> int:
        return self.log_offset + self.size


Found = Record | Blank | Damage


def scan_log(files: SegmentFiles, start: int, end: int) -> Iterator[Found]:
    """Everything from `start` to `end`, which both are the beginning of a record, a blank or damage.

    `end` is where the log is known to end; without such knowledge it is the end of the files, and the last thing found
    is a Damage: what was torn, or never written.
    """
    at = start
    while at < end:
        for found in scan_whole(files, at, end):
            yield found
            at = found.log_offset + found.size
        if at < end:
            go_on = min(resynchronise(files, at, end) or end, end)
            yield Damage(at, go_on - at, explain(files, at))
            at = go_on


def scan_whole(files: SegmentFiles, start: int, end: int) -> Iterator[Found]:
    """Records, blanks and sealed frames that cannot be read, from `start` on; ends at `end`, or at other bytes."""
    at = start
    while at < end:
        room = files.room(at)
        block = files.read(min(READ_BYTES, room), at)
        used = 0
        while at + used < end and (found := _whole(block, used, at + used, room - used)) is not None:
            yield found
            used += found.size
            if isinstance(found, Blank):
                break
        if used == 0:
            # Nothing whole at the beginning of the block: broken, or one record larger than a block.
            large = _whole(_stretch(files, block, at), 0, at, room)
            if large is None:
                return
            yield large
            used = large.size
        at += used


def resynchronise(files: SegmentFiles, broken: int, end: int) -> int | None:
    """Where the next record or blank after the broken one at `broken` begins, or None when there is none."""
    head = files.read(min(SEGMENT_HEAD.size, files.room(broken)), broken)
    if len(head) == SEGMENT_HEAD.size:
        size: int = SEGMENT_HEAD.unpack(head)[0]
        if RECORD_BYTES_MIN <= size < files.room(broken) and _stands_at(files, broken + size):
            return broken + size  # only its content is broken, not its length
    at = broken + 1
    while at < end:
        block = files.read(min(READ_BYTES, files.room(at)), at)
        for place in _magics_in(block):
            if place >= _MAGIC_AT and _stands_at(files, at + place - _MAGIC_AT):
                return at + place - _MAGIC_AT
        if len(block) == files.room(at):
            at += len(block)
            if at < end and _stands_at(files, at):
                return at
        else:
            at += len(block) - SEGMENT_HEAD.size  # a magic may lie across the end of the block
    return None


def explain(files: SegmentFiles, at: int) -> str:
    """Why nothing whole stands at `at`."""
    room = files.room(at)
    head = files.read(min(SEGMENT_HEAD.size, room), at)
    if len(head) < SEGMENT_HEAD.size:
        return "no room for a record"
    size, magic = SEGMENT_HEAD.unpack(head)
    if size == magic == 0:
        return "never written"
    if magic == BLANK_MAGIC:
        return f"a blank of {size} bytes where the file has {room} left"
    if magic != MESSAGE_MAGIC:
        return f"bad magic 0x{magic & 0xFFFF_FFFF:08X}"
    if not RECORD_BYTES_MIN <= size <= min(RECORD_BYTES_MAX, room):
        return f"impossible length {size}"
    data = files.read(size, at)
    if not is_sealed(data, 0, size):
        return "CRC mismatch"
    try:
        record = decode_record(data)
    except RecordError as error:
        return str(error)
    return f"a record of offset {record.log_offset}"


def is_unsealed_record(files: SegmentFiles, at: int) -> bool:
    """Whether a record without a CRC property stands at `at`, otherwise as it should be."""
    if at >= files.capacity_end:
        return False
    size, magic = SEGMENT_HEAD.unpack(files.read(SEGMENT_HEAD.size, at))
    if magic != MESSAGE_MAGIC or not 0 < size <= min(RECORD_BYTES_MAX, files.room(at)):
        return False
    data = files.read(size, at)
    try:
        record = decode_record(data)
    except RecordError:
        return False
    intact = record.log_offset == at and zlib.crc32(record.body) & CRC_MASK == record.body_crc
    return intact and CRC_PREFIX not in data[-CRC_BYTES:]


def _whole(block: bytes, at: int, log_offset: int, room: int) -> Found | None:
    """The record, blank or unreadable sealed frame at `at` of the block; None when there is none, or not all of it."""
    try:
        record = decode_record(block, at)
    except RecordError as error:
        return _no_record(block, at, log_offset, room, str(error))
    return record if record.log_offset == log_offset and is_sealed(block, at, record.size) else None


def _no_record(block: bytes, at: int, log_offset: int, room: int, reason: str) -> Blank | Damage | None:
    if len(block) - at < SEGMENT_HEAD.size:
        return None
    size, magic = SEGMENT_HEAD.unpack_from(block, at)
    if magic == BLANK_MAGIC and size == room:
        return Blank(log_offset, size)
    if magic != MESSAGE_MAGIC or not RECORD_BYTES_MIN <= size <= len(block) - at or not is_sealed(block, at, size):
        return None
    return Damage(log_offset, size, reason) if OFFSETS.unpack_from(block, at + OFFSETS_AT)[1] == log_offset else None


def _stretch(files: SegmentFiles, block: bytes, at: int) -> bytes:
    """The block, or more of the file when it begins with a record that is larger than a block may be."""
    if len(block) < READ_BYTES:
        return block
    size = SEGMENT_HEAD.unpack_from(block, 0)[0]
    return files.read(size, at) if READ_BYTES < size <= min(RECORD_BYTES_MAX, files.room(at)) else block


def _stands_at(files: SegmentFiles, at: int) -> bool:
    """Whether a whole record or blank begins at `at`."""
    if at >= files.capacity_end:
        return False
    room = files.room(at)
    head = files.read(min(SEGMENT_HEAD.size, room), at)
    if len(head) < SEGMENT_HEAD.size:
        return False
    size, magic = SEGMENT_HEAD.unpack(head)
    if magic == MESSAGE_MAGIC and RECORD_BYTES_MIN <= size <= min(RECORD_BYTES_MAX, room):
        return _whole(files.read(size, at), 0, at, room) is not None
    return _whole(head, 0, at, room) is not None


def _magics_in(block: bytes) -> Iterator[int]:
    """Where the block has the magic of a record or of a blank, in order."""
    places = [block.find(magic) for magic in _MAGICS]
    while any(place >= 0 for place in places):
        place = min(place for place in places if place >= 0)
        yield place
        which = places.index(place)
        places[which] = block.find(_MAGICS[which], place + 1)

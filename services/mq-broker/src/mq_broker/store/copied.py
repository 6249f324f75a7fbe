"""The log on its way from a master to a slave: which bytes travel, and what they have to prove on arrival.

Whole records travel as they stand in the log. A blank travels as its 8 bytes of head, however long it is: what follows
them is not looked at, and is zeros in the copy. A damaged stretch travels as it is, so that the copy has every byte at
its place, in pieces with a head each: total size (4), magic 0x48474450 (4), log offset (8) and size (8) of the whole
stretch, CRC-32, unsigned, of both numbers and the piece (4). Those heads are in no log.

Invariants: pieces follow each other without a gap; nothing is taken from bytes of which anything is wrong.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct

from mq_broker.core.rewrite import entry_tags_code
from mq_broker.store.errors import CopyError
from mq_broker.store.log_scan import Blank, Damage
from mqproto.names import check_topic
from mqproto.properties import PropertiesError
from mqproto.record import (
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    RECORD_BYTES_MIN,
    SEGMENT_HEAD,
    Record,
    RecordError,
    decode_record,
    encode_blank,
    is_sealed,
)

DAMAGE_MAGIC = 0x4847_4450
_DAMAGE_HEAD, _STRETCH = Struct(">iiqqI"), Struct(">qq")
_NO_RECORDS = frozenset({BLANK_MAGIC, DAMAGE_MAGIC})


@dataclass(slots=True)
class CopiedRun:
    """Records that lie end to end in one file, and what the third field of their consume-queue entries is."""

    log_offset: int
    data: bytes
    records: list[Record] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class CopiedDamage:
    """A piece of a damaged stretch."""

    log_offset: int
    data: bytes
    stretch: Damage

    @property
    def size(self) -> int:
        return len(self.data)


Copied = CopiedRun | Blank | CopiedDamage


def encode_damage(piece: bytes, stretch: Damage) -> bytes:
    """A piece of a damaged stretch with the head that it travels with."""
    size = _DAMAGE_HEAD.size + len(piece)
    head = _DAMAGE_HEAD.pack(size, DAMAGE_MAGIC, stretch.log_offset, stretch.size, _damage_crc(piece, stretch))
    return head + piece


def encode_travelling_blank(blank: Blank) -> bytes:
    """The blank as it travels."""
    return encode_blank(blank.size)


def take_apart(data: bytes, log_offset: int, file_bytes: int) -> list[Copied]:
    """What `data` holds, which belongs at `log_offset` of a log with files of this size. Raises CopyError."""
    return list(_pieces(data, log_offset, file_bytes))


def _pieces(data: bytes, log_offset: int, file_bytes: int) -> Iterator[Copied]:
    at, end = 0, len(data)
    while at < end:
        if end - at < SEGMENT_HEAD.size:
            raise CopyError(f"{end - at} bytes are left for log offset {log_offset}: no record is that short")
        size, magic = SEGMENT_HEAD.unpack_from(data, at)
        room = file_bytes - log_offset % file_bytes
        piece: Copied
        if magic == BLANK_MAGIC:
            if size != room:
                raise CopyError(f"a blank of {size} bytes at log offset {log_offset}, where the file has {room} left")
            piece, used = Blank(log_offset, size), SEGMENT_HEAD.size
        elif magic == DAMAGE_MAGIC:
            piece, used = _damage(data, at, log_offset), size
        else:
            piece = _run(data, at, log_offset, room)
            used = piece.size
        yield piece
        at += used
        log_offset += piece.size


def _run(data: bytes, at: int, log_offset: int, room: int) -> CopiedRun:
    """The records from `at` on, up to the end of their file or to what is no record."""
    begin, end, begin_offset = at, len(data), log_offset
    records: list[Record] = []
    codes: list[int] = []
    while end - at >= SEGMENT_HEAD.size and room:
        size, magic = SEGMENT_HEAD.unpack_from(data, at)
        if magic in _NO_RECORDS and records:
            break
        record = _record(data, at, log_offset, room)
        records.append(record)
        codes.append(_code(record))
        at += size
        log_offset += size
        room -= size
    return CopiedRun(begin_offset, data[begin:at], records, codes)


def _record(data: bytes, at: int, log_offset: int, room: int) -> Record:
    size, magic = SEGMENT_HEAD.unpack_from(data, at)
    if magic != MESSAGE_MAGIC:
        raise CopyError(f"no record, no blank for log offset {log_offset}: the magic is 0x{magic & 0xFFFF_FFFF:08X}")
    if not RECORD_BYTES_MIN <= size <= len(data) - at:
        raise CopyError(f"the record for log offset {log_offset} says {size} bytes; {len(data) - at} have come")
    if size > room:
        raise CopyError(f"the record for log offset {log_offset} takes {size} bytes, and its file has {room} left")
    if not is_sealed(data, at, size):
        raise CopyError(f"the record for log offset {log_offset} does not match its CRC")
    try:
        record = decode_record(data, at)
        _require_queue(record.topic, record.queue_id, record.queue_offset)
    except (RecordError, ValueError) as error:
        raise CopyError(f"the record for log offset {log_offset}: {error}") from None
    if record.log_offset != log_offset:
        raise CopyError(f"the record for log offset {log_offset} says that it stands at {record.log_offset}")
    return record


def _require_queue(topic: str, queue_id: int, queue_offset: int) -> None:
    """The name of a folder is made of them. Raises ValueError."""
    _require_topic(topic)
    if queue_id < 0 or queue_offset < 0:
        raise ValueError(f"it says number {queue_offset} of queue {queue_id}; neither may be negative")


@lru_cache(maxsize=4_096)
def _require_topic(topic: str) -> None:
    check_topic(topic)


def _code(record: Record) -> int:
    try:
        return entry_tags_code(record)
    except (PropertiesError, ValueError) as error:
        raise CopyError(f"the record for log offset {record.log_offset}: {error}") from None


def _damage(data: bytes, at: int, log_offset: int) -> CopiedDamage:
    left = len(data) - at
    if left < _DAMAGE_HEAD.size:
        raise CopyError(f"{left} bytes are left for log offset {log_offset}: the head of a damaged stretch is longer")
    size, _, begin, stretch_size, crc = _DAMAGE_HEAD.unpack_from(data, at)
    if not _DAMAGE_HEAD.size < size <= left:
        raise CopyError(f"the damaged bytes for log offset {log_offset} say {size}; {left} have come")
    piece = data[at + _DAMAGE_HEAD.size : at + size]
    stretch = Damage(begin, stretch_size, "damaged in the master's log")
    if _damage_crc(piece, stretch) != crc:
        raise CopyError(f"the damaged bytes for log offset {log_offset} do not match their CRC")
    if not 0 <= begin <= log_offset <= log_offset + len(piece) <= stretch.end:
        raise CopyError(f"{len(piece)} damaged bytes for log offset {log_offset} are not of {stretch_size} at {begin}")
    return CopiedDamage(log_offset, piece, stretch)


def _damage_crc(piece: bytes, stretch: Damage) -> int:
    return zlib.crc32(piece, zlib.crc32(_STRETCH.pack(stretch.log_offset, stretch.size)))

"""Records that have come a long way: each one proves itself at once, and is taken apart when somebody asks.

A consumer gets many records and looks at few of their fields. So a frame is walked once, and of a record nothing is
decoded but what every consumer needs.

Invariants: the CRC of a SealedRecord has matched, so it says what its broker has checked and stored; it has a copy of
its own bytes, so that one message that waits does not keep a whole frame in memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct

from mqproto.record import (
    BODY_AT,
    CRC_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    MESSAGE_MAGIC,
    RECORD_BYTES_MIN,
    Record,
    RecordError,
    crc_property,
    decode_record,
)

# size, magic, queue offset, sysflag, reconsume times, body size; the x's wait until somebody asks
_HEAD = Struct(">ii12xq8xi32xi8xi")
_SYS_FLAGS_REFUSED = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6


class SealedRecord:
    """What a consumer needs of every record; `decode` gives the rest."""

    __slots__ = ("parts", "queue_offset", "reconsume_times", "size", "sys_flag")

    def __init__(
        self, size: int, queue_offset: int, sys_flag: int, reconsume_times: int, parts: tuple[bytes, bytes, bytes]
    ) -> None:
        """`parts` are the record's bytes, `size` of them: what stands before the body, the body, and what follows."""
        self.size = size
        self.queue_offset = queue_offset
        self.sys_flag = sys_flag
        self.reconsume_times = reconsume_times
        self.parts = parts

    @property
    def body(self) -> bytes:
        """As it travels, which may be compressed."""
        return self.parts[1]

    def decode(self) -> Record:
        """All of it. Raises RecordError when its broker has sealed lengths that do not fit each other."""
        return decode_record(b"".join(self.parts))


def iter_sealed_records(buffer: bytes) -> Iterator[SealedRecord]:
    """Each record of `buffer`, in which they lie end to end.

    Raises RecordError at the first one that is none, or whose CRC does not match.
    """
    at, end, view = 0, len(buffer), memoryview(buffer)
    while at < end:
        if end - at < RECORD_BYTES_MIN:
            raise _problem(buffer, at)
        size, magic, queue_offset, sys_flag, reconsume_times, body_size = _HEAD.unpack_from(buffer, at)
        body_at, next_at = at + BODY_AT, at + size
        topic_at, sealed_end = body_at + body_size, next_at - CRC_BYTES
        if (
            magic != MESSAGE_MAGIC
            or sys_flag & _SYS_FLAGS_REFUSED
            or next_at > end
            or not 0 <= body_size <= size - RECORD_BYTES_MIN
            or buffer[sealed_end:next_at] != crc_property(zlib.crc32(view[at:sealed_end]))
        ):
            raise _problem(buffer, at)
        parts = buffer[at:body_at], buffer[body_at:topic_at], buffer[topic_at:next_at]
        yield SealedRecord(size, queue_offset, sys_flag, reconsume_times, parts)
        at = next_at


def _problem(buffer: bytes, at: int) -> RecordError:
    """Why no record stands at `at`, or none that is whole."""
    try:
        record = decode_record(buffer, at)
    except RecordError as error:
        return error
    return RecordError(f"the record of log offset {record.log_offset} is damaged: CRC mismatch")

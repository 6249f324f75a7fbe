"""Record batches on their way into the log: checked once, patched in place once.

`check_batch` refuses a batch whole or accepts it whole. `patch_batch` gives its records their places. Between them
they touch each message once; nothing here makes an object for a message.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace
from struct import Struct

from mqproto.java_hash import java_string_hash
from mqproto.properties import (
    CRC32,
    DELAY,
    DUE_TIMESTAMP,
    HALF_TIMESTAMP,
    REAL_QID,
    REAL_TOPIC,
    SCHEDULE_POSITION,
    TAGS,
    TRAN_MSG,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_STATE,
    WAIT,
    PropertiesError,
    decode_properties,
)
from mqproto.record import (
    BODY_AT,
    CRC_BYTES,
    CRC_DIGITS,
    CRC_MASK,
    CRC_PLACEHOLDER,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_PREPARED,
    MESSAGE_MAGIC,
    OFFSETS,
    OFFSETS_AT,
    RECORD_BYTES_MIN,
    STORE,
    STORE_AT,
)

CQ_ENTRY = Struct(">qiq")  # log offset, size, tag hash: 20 bytes (MISSION S3)

# size, magic, body CRC, queue id, sysflag, body size; the x's are what a check does not need
_CHECKED_HEAD = Struct(">iiii20xi44xi")
_SYS_FLAGS_REFUSED = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6
_CRC_DIGITS_AND_SEPARATOR = CRC_DIGITS + 1

# Properties that need no second look: well-formed, none that the broker acts on, the empty CRC last; group 1: the tag.
_PLAIN_PROPERTIES = re.compile(
    rb"(?:TAGS\x01([^\x01\x02]*+)\x02"
    rb"|(?!DELAY\x01|TRAN|REAL_|__|WAIT\x01false)[^\x01\x02]++\x01[^\x01\x02]*+\x02)*+" + re.escape(CRC_PLACEHOLDER)
)
_BROKER_PROPERTIES = (
    REAL_TOPIC,
    REAL_QID,
    SCHEDULE_POSITION,
    DUE_TIMESTAMP,
    TRANSACTION_STATE,
    TRANSACTION_CHECK_TIMES,
    HALF_TIMESTAMP,
    CRC32,
)


class BatchError(ValueError):
    """A batch that cannot be stored; the message says which record and why."""


@dataclass(slots=True)
class Batch:
    """A checked batch for one queue. `delay_level` is 0, or the level that all of its records ask for.

    Invariant: the records of `buffer` have exactly the lengths `sizes`, and `tags_codes` has one code for each.
    """

    topic: str
    queue_id: int
    buffer: bytearray
    sizes: list[int]
    tags_codes: list[int]
    delay_level: int = 0
    prepared: bool = False  # a half message
    waits: bool = True  # to be acknowledged by the flush policy; False when every record says that it need not

    @property
    def count(self) -> int:
        return len(self.sizes)

    def part(self, begin: int, end: int) -> Batch:
        """The records from number `begin` to `end` - 1 as a batch of their own."""
        at = sum(self.sizes[:begin])
        sizes = self.sizes[begin:end]
        return replace(
            self,
            buffer=self.buffer[at : at + sum(sizes)],
            sizes=sizes,
            tags_codes=self.tags_codes[begin:end],
        )


def check_batch(topic: str, queue_id: int, count: int, records: bytes, body_size_max: int) -> Batch:
    """Check every record of a batch as it came from a client. Raises BatchError; nothing has happened then."""
    topic_field = len(topic).to_bytes(1, "big") + topic.encode()
    sizes: list[int] = []
    codes: list[int] = []
    levels: set[int] = set()
    prepared, waits = False, False
    at, end, view = 0, len(records), memoryview(records)
    while at < end:
        if end - at < RECORD_BYTES_MIN:
            raise BatchError(f"record {len(sizes)}: {end - at} bytes are left; a record takes {RECORD_BYTES_MIN}")
        size, magic, body_crc, record_queue, sys_flag, body_size = _CHECKED_HEAD.unpack_from(records, at)
        topic_at = at + BODY_AT + body_size
        properties_at = topic_at + len(topic_field) + 2
        record_end = at + size
        if magic != MESSAGE_MAGIC or body_size <= 0 or record_end > end or properties_at + CRC_BYTES > record_end:
            raise _shape_error(len(sizes), magic, size, body_size, end - at)
        if body_size > body_size_max:
            raise BatchError(
                f"record {len(sizes)}: the body takes {body_size} bytes; at most {body_size_max} are allowed"
            )
        if record_queue != queue_id or records[topic_at : properties_at - 2] != topic_field:
            raise BatchError(f"record {len(sizes)} does not name the batch's topic {topic!r} and queue {queue_id}")
        if int.from_bytes(records[properties_at - 2 : properties_at], "big") != record_end - properties_at:
            raise BatchError(f"record {len(sizes)}: the length of its properties does not fit its size {size}")
        transaction = sys_flag & FLAG_TRANSACTION_MASK
        if sys_flag & _SYS_FLAGS_REFUSED or transaction not in (0, FLAG_TRANSACTION_PREPARED):
            raise BatchError(
                f"record {len(sizes)}: sysflag 0x{sys_flag:X} asks for IPv6, or for the end of a transaction"
            )
        prepared |= transaction != 0
        if zlib.crc32(view[at + BODY_AT : topic_at]) & CRC_MASK != body_crc:
            raise BatchError(f"record {len(sizes)}: the body does not match its CRC; it was damaged on its way")
        plain = _PLAIN_PROPERTIES.fullmatch(records, properties_at, record_end)
        properties = _text(len(sizes), records[properties_at:record_end])
        if plain:
            waits = True
            levels.add(0)
            tag = plain[1]
            codes.append(java_string_hash(tag.decode()) if tag else 0)
        else:
            values = _look_closer(len(sizes), properties, prepared=transaction != 0)
            waits |= values.get(WAIT) != "false"
            levels.add(int(values.get(DELAY, "0")))
            codes.append(java_string_hash(values.get(TAGS, "")))
        sizes.append(size)
        at = record_end
    if not sizes or len(sizes) != count:
        raise BatchError(f"the batch says {count} records and holds {len(sizes)}")
    if len(levels) > 1:
        raise BatchError(f"the batch mixes the delay levels {sorted(levels)}; a batch has one")
    return Batch(topic, queue_id, bytearray(records), sizes, codes, levels.pop(), prepared, waits)


def patch_batch(
    batch: Batch, *, queue_offset: int, log_offset: int, store_ms: int, store_ip: int, store_port: int
) -> bytes:
    """Give the records their offsets, store time and host, seal each, and return their consume-queue entries."""
    buffer, at, entries = batch.buffer, 0, []
    crc32, view = zlib.crc32, memoryview(batch.buffer)
    for size, code in zip(batch.sizes, batch.tags_codes, strict=True):
        OFFSETS.pack_into(buffer, at + OFFSETS_AT, queue_offset, log_offset + at)
        STORE.pack_into(buffer, at + STORE_AT, store_ms, store_ip, store_port)
        end = at + size
        digits = b"%010d" % (crc32(view[at : end - CRC_BYTES]) & CRC_MASK)
        buffer[end - _CRC_DIGITS_AND_SEPARATOR : end - 1] = digits[::-1]  # same length: a view allows it
        entries.append(CQ_ENTRY.pack(log_offset + at, size, code))
        queue_offset += 1
        at = end
    return b"".join(entries)


def _text(number: int, properties: bytes) -> str:
    try:
        return properties.decode()
    except UnicodeDecodeError as error:
        raise BatchError(f"record {number}: the properties are not UTF-8 at byte {error.start}") from None


def _look_closer(number: int, properties: str, *, prepared: bool) -> dict[str, str]:
    """Properties that are not plain, with a delay level that is a number; raises BatchError with what is wrong."""
    body, placeholder = properties[:-CRC_BYTES], properties[-CRC_BYTES:]
    if placeholder.encode() != CRC_PLACEHOLDER or (body and not body.endswith("\x02")):
        raise BatchError(f"record {number} does not end with an empty CRC property")
    try:
        values = decode_properties(body.encode())
    except PropertiesError as error:
        raise BatchError(f"record {number}: {error}") from None
    for name in _BROKER_PROPERTIES:
        if name in values:
            raise BatchError(f"record {number} has the property {name}, which belongs to the broker")
    if TRAN_MSG in values and not prepared:
        raise BatchError(f"record {number} has the property {TRAN_MSG} and not the prepared bit in its sysflag")
    level = values.get(DELAY, "0")
    if not level.isascii() or not level.isdigit() or len(level) > 3:
        raise BatchError(f"record {number}: the delay level {level!r} is not a whole number from 0 up")
    return values


def _shape_error(number: int, magic: int, size: int, body_size: int, left: int) -> BatchError:
    if magic != MESSAGE_MAGIC:
        return BatchError(
            f"record {number}: the magic is 0x{magic & 0xFFFFFFFF:08X}, not 0x{MESSAGE_MAGIC & 0xFFFFFFFF:08X}"
        )
    if body_size <= 0:
        return BatchError(f"record {number}: the body takes {body_size} bytes; at least 1 is needed")
    return BatchError(f"record {number}: size {size} and body {body_size} do not fit the {left} bytes that are left")

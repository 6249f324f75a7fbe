"""The message record: one codec for the wire and the disk, laid out as Apache RocketMQ's commit log has it.

All numbers are big-endian and signed. The byte offsets below are this module's only source; FORMAT.md in the broker's
store describes the same layout in words, and a test builds records by hand from that description.

How much a producer may put into a record's properties is checked by clients before they send, and by brokers before
they store. Readers accept more. Whatever the length fields of a record can say is readable (`decode_record`), because
earlier versions stored longer properties, and because a broker adds properties of its own when it writes a record
again: for a delay, a transaction, a retry. `BROKER_PROPERTIES_BYTES_MAX` is kept free for those, so that a record that
was accepted can always be written again within `SHORT_PROPERTIES_BYTES_MAX`, which RocketMQ can read, too.

Invariants: a record's first four bytes are its length; its last twenty bytes are the CRC property, whose ten digits
cover every byte before that property; the body CRC covers the body. Both CRCs are masked to 31 bits. The CRC of a
SealedRecord has matched, so it says what its broker has checked and stored; it has a copy of its own bytes, so that one
message that waits does not keep a whole frame in memory.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

from mqproto.properties import (
    CRC32,
    DELAY,
    DUE_TIMESTAMP,
    ORIGIN_MESSAGE_ID,
    PROPERTIES_BYTES_MAX,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    SCHEDULE_POSITION,
    WAIT,
)

MESSAGE_MAGIC = 0xDAA320A7 - 0x1_0000_0000
BLANK_MAGIC = 0xCBD43194 - 0x1_0000_0000
CRC_MASK = 0x7FFF_FFFF

BODY_BYTES_MAX = 4 * 1024 * 1024  # mechanism M7
TOPIC_BYTES_MAX = 127  # a signed byte keeps the length
SEGMENT_HEAD = Struct(">ii")  # total size, magic: enough to step over any record

HEAD = Struct(">iiiiiqqiqiiqiiiqi")
QUEUE_ID_AT = 12
OFFSETS_AT, OFFSETS = 20, Struct(">qq")  # queue offset, physical offset
SYS_FLAG_AT = 36
STORE_AT, STORE = 56, Struct(">qii")  # store timestamp, store host, store port
BODY_AT = HEAD.size  # 88

CRC_PREFIX = f"{CRC32}\x01".encode()
CRC_DIGITS = 10
CRC_BYTES = len(CRC_PREFIX) + CRC_DIGITS + 1  # 20
CRC_PLACEHOLDER = CRC_PREFIX + b"0" * CRC_DIGITS + b"\x02"
_CRC_DIGITS_FROM_END = CRC_DIGITS + 1
_CRC_BACKWARDS = b"\x02%010d"  # the separator that ends the property, and the digits
_COPY_BYTES_MAX = 16 * 1024

RECORD_BYTES_MIN = BODY_AT + 1 + 2 + CRC_BYTES
RECORD_BYTES_MAX = BODY_AT + BODY_BYTES_MAX + 1 + TOPIC_BYTES_MAX + 2 + PROPERTIES_BYTES_MAX

# sysflag bits, RocketMQ's MessageSysFlag
FLAG_COMPRESSED = 0x1
FLAG_MULTI_TAGS = 0x1 << 1
FLAG_TRANSACTION_PREPARED = 0x1 << 2
FLAG_TRANSACTION_COMMIT = 0x2 << 2
FLAG_TRANSACTION_ROLLBACK = 0x3 << 2
FLAG_TRANSACTION_MASK = 0x3 << 2
FLAG_BORN_HOST_V6 = 0x1 << 4
FLAG_STORE_HOST_V6 = 0x1 << 5
FLAG_COMPRESSION_LZ4 = 0x1 << 8
FLAG_COMPRESSION_ZSTD = 0x2 << 8
FLAG_COMPRESSION_ZLIB = 0x3 << 8
FLAG_COMPRESSION_TYPE_MASK = 0x7 << 8  # 0: zlib, as RocketMQ 4 wrote it

# size, magic, queue offset, sysflag, reconsume times, body size; the x's are decoded on demand
_HEAD = Struct(">ii12xq8xi32xi8xi")
_SYS_FLAGS_REJECTED = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6

SHORT_PROPERTIES_BYTES_MAX = 32_767  # RocketMQ reads the length as a signed short
UNIQ_KEY_BYTES_MAX = 255  # a client's are 32 bytes; a retry says the key twice
TAG_BYTES_MAX = 255  # as long as the longest name of a group
KEYS_MAX = 128  # of one record: each is an entry of the index, which takes 20 bytes

_INT32_DIGITS_MAX, _INT64_DIGITS_MAX = 10, 19

# The properties that a broker has added at the same time at the most, and how long their values become: those of a
# retry that waits and was carried over. A half message has fewer.
_ADDED_BY_BROKER = {
    RETRY_TOPIC: TOPIC_BYTES_MAX,
    ORIGIN_MESSAGE_ID: UNIQ_KEY_BYTES_MAX,
    DELAY: _INT32_DIGITS_MAX,
    WAIT: len("false"),
    REAL_TOPIC: TOPIC_BYTES_MAX,
    REAL_QID: _INT32_DIGITS_MAX,
    DUE_TIMESTAMP: _INT64_DIGITS_MAX,
    SCHEDULE_POSITION: _INT32_DIGITS_MAX + len(":") + _INT64_DIGITS_MAX,
}
BROKER_PROPERTIES_BYTES_MAX = sum(len(f"{name}\x01\x02") + length for name, length in _ADDED_BY_BROKER.items())
PRODUCER_PROPERTIES_BYTES_MAX = SHORT_PROPERTIES_BYTES_MAX - BROKER_PROPERTIES_BYTES_MAX  # with the CRC property


class RecordError(ValueError):
    """Bytes that are not a record; the message says what is wrong and where."""


@dataclass(slots=True)
class Record:
    """One record, taken apart. `properties` is the text form without the CRC property; hosts are (IPv4, port).

    Never changed: it is not frozen because that would make half of the cost of `decode_record`.
    """

    size: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: tuple[str, int]
    store_timestamp_ms: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: bytes


def pack_ip(ip: str) -> int:
    """The IPv4 address as the signed number that a record keeps. Raises RecordError."""
    try:
        return int.from_bytes(socket.inet_pton(socket.AF_INET, ip), "big", signed=True)
    except (OSError, ValueError):  # ValueError: a NUL, or characters outside ASCII
        raise RecordError(f"{ip!r} is not an IPv4 address") from None


@lru_cache(maxsize=4_096)  # a broker reads records of the same few hosts again and again
def unpack_ip(packed: int) -> str:
    """The inverse of `pack_ip`."""
    return socket.inet_ntoa(packed.to_bytes(4, "big", signed=True))


def encode_record(
    *,
    topic: bytes,
    body: bytes,
    properties: bytes,
    queue_id: int,
    born_timestamp_ms: int,
    born_ip: int,
    born_port: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """One record as a producer sends it: the broker's fields are zero and the CRC property is a placeholder.

    Checks the lengths that the layout itself limits; raises RecordError.
    """
    properties_size = len(properties) + CRC_BYTES
    if properties_size > PROPERTIES_BYTES_MAX:
        allowed = PROPERTIES_BYTES_MAX - CRC_BYTES
        raise RecordError(f"the properties take {len(properties):,} bytes; at most {allowed:,} are allowed")
    if len(topic) > TOPIC_BYTES_MAX:
        raise RecordError(f"the topic takes {len(topic)} bytes; at most {TOPIC_BYTES_MAX} are allowed")
    if len(body) > BODY_BYTES_MAX:
        raise RecordError(f"the body takes {len(body):,} bytes; at most {BODY_BYTES_MAX:,} are allowed")
    size = BODY_AT + len(body) + 3 + len(topic) + properties_size
    try:
        head = HEAD.pack(
            size, MESSAGE_MAGIC, zlib.crc32(body) & CRC_MASK, queue_id, flag, 0, 0, sys_flag, born_timestamp_ms,
            born_ip, born_port, 0, 0, 0, reconsume_times, prepared_transaction_offset, len(body),
        )  # fmt: skip
    except struct.error as error:
        raise RecordError(f"a number does not fit into its field of the record: {error}") from None
    tail = properties_size.to_bytes(2, "big")
    return b"".join((head, body, len(topic).to_bytes(1, "big"), topic, tail, properties, CRC_PLACEHOLDER))


def seal(buffer: bytearray, at: int, size: int) -> None:
    """Write the CRC digits of the record that fills `size` bytes at `at`; everything else must be in its place."""
    end = at + size
    with memoryview(buffer) as view:
        ending = crc_property(zlib.crc32(view[at : end - CRC_BYTES]))
    buffer[end - _CRC_DIGITS_FROM_END : end - 1] = ending[-_CRC_DIGITS_FROM_END:-1]


def is_sealed(buffer: bytes | bytearray | memoryview, at: int, size: int) -> bool:
    """Whether the CRC property is there and its digits are right."""
    end = at + size
    covered = end - CRC_BYTES
    # A small copy costs less than a view.
    crc = zlib.crc32(buffer[at:covered] if size < _COPY_BYTES_MAX else memoryview(buffer)[at:covered])
    return bytes(buffer[covered:end]) == crc_property(crc)


def crc_property(crc: int) -> bytes:
    """The property that ends a record whose other bytes have this CRC-32: its digits stand there backwards."""
    return CRC_PREFIX + (_CRC_BACKWARDS % (crc & CRC_MASK))[::-1]


def decode_record(buffer: bytes, at: int = 0) -> Record:
    """Take the record at `at` apart. Lengths are checked, CRCs are not (`is_sealed`). Raises RecordError."""
    if len(buffer) - at < RECORD_BYTES_MIN:
        raise RecordError(f"{len(buffer) - at} bytes at {at}: a record takes at least {RECORD_BYTES_MIN}")
    (
        size, magic, body_crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_timestamp, born_ip, born_port,
        store_timestamp, store_ip, store_port, reconsume_times, prepared_offset, body_size,
    ) = HEAD.unpack_from(buffer, at)  # fmt: skip
    if magic != MESSAGE_MAGIC:
        raise RecordError(
            f"the magic at {at + 4} is 0x{magic & 0xFFFFFFFF:08X}, not 0x{MESSAGE_MAGIC & 0xFFFFFFFF:08X}"
        )
    if sys_flag & (FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6):
        raise RecordError(f"the record at {at} has IPv6 hosts; only IPv4 is supported")
    end = at + size
    topic_at = at + BODY_AT + body_size
    if size < RECORD_BYTES_MIN or end > len(buffer) or body_size < 0 or topic_at + 3 > end:
        raise RecordError(f"the record at {at} says {size} bytes with a body of {body_size}; that does not fit")
    topic_end = topic_at + 1 + buffer[topic_at]
    if buffer[topic_at] > TOPIC_BYTES_MAX or topic_end + 2 > end:
        raise RecordError(f"the topic of the record at {at} takes {buffer[topic_at]} bytes; that does not fit")
    properties_size = buffer[topic_end] << 8 | buffer[topic_end + 1]
    if topic_end + 2 + properties_size != end:
        raise RecordError(f"the properties of the record at {at} take {properties_size} bytes; that does not fit")
    properties = buffer[topic_end + 2 : end]
    if properties.startswith(CRC_PREFIX, -CRC_BYTES):
        properties = properties[:-CRC_BYTES]
    try:
        topic = buffer[topic_at + 1 : topic_end].decode()
    except UnicodeDecodeError:
        raise RecordError(f"the topic of the record at {at} is not UTF-8") from None
    return Record(
        size, body_crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_timestamp,
        (unpack_ip(born_ip), born_port), store_timestamp, (unpack_ip(store_ip), store_port), reconsume_times,
        prepared_offset, buffer[at + BODY_AT : topic_at], topic, properties,
    )  # fmt: skip


def encoded_properties(buffer: bytes, at: int, size: int) -> bytes:
    """The properties of the record that fills `size` bytes at `at`, the CRC property included; the record is whole."""
    topic_at = at + BODY_AT + int.from_bytes(buffer[at + BODY_AT - 4 : at + BODY_AT], "big")
    return buffer[topic_at + 3 + buffer[topic_at] : at + size]


def iter_records(buffer: bytes) -> Iterator[Record]:
    """Each record of `buffer`, in which they lie end to end. Raises RecordError at the first one that is none."""
    at = 0
    while at < len(buffer):
        record = decode_record(buffer, at)
        yield record
        at += record.size


def encode_blank(size: int) -> bytes:
    """The head of the record that fills the last `size` bytes of a commit-log file."""
    return SEGMENT_HEAD.pack(size, BLANK_MAGIC)


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
            or sys_flag & _SYS_FLAGS_REJECTED
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

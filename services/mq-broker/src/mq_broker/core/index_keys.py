"""The keys of a message in the index (MISSION M2, S4): its unique key, and each of its user's keys.

A key is hashed as `topic#key` by Java's String.hashCode; the index keeps the absolute value, and 0 for the minimum,
which has none.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from mqproto.properties import (
    KEY_SEPARATOR,
    KEYS,
    UNIQ_KEY,
    byte_string_hash,
    java_string_hash,
    property_start,
    property_value,
)
from mqproto.record import BODY_AT, Record

IndexKey = tuple[int, int, int]  # key hash, log offset, store timestamp in ms

_HEAD = Struct(">i52xq20xi")  # size, store timestamp, body size
_UNIQ_KEY, _KEYS, _SEPARATOR = property_start(UNIQ_KEY), property_start(KEYS), KEY_SEPARATOR.encode()


def index_hash(topic: str, key: str) -> int:
    """The number under which the index has this key of a message of this topic."""
    return _hash(topic.encode() + b"#", key.encode())


def message_keys(record: Record) -> list[str]:
    """Every key under which the message can be found, in the order in which the index has them."""
    return [key.decode() for key in _keys_between(record.properties, 0, len(record.properties))]


def record_index_keys(record: Record) -> list[IndexKey]:
    """What the index has of a record."""
    prefix = record.topic.encode() + b"#"
    keys = _keys_between(record.properties, 0, len(record.properties))
    return [(_hash(prefix, key), record.log_offset, record.store_timestamp_ms) for key in keys]


def index_keys(
    records: bytes | bytearray, at: int, log_offset: int, *, records_max: int, keys_max: int
) -> tuple[list[IndexKey], int]:
    """What the index has of whole records that lie end to end, the first of them at `at` and at `log_offset`.

    Looks at no more than `records_max`, and at none behind the one with which there are `keys_max` keys or more;
    returns the keys, and how many bytes were looked at.
    """
    begin, end, found = at, len(records), list[IndexKey]()
    topic: bytes | bytearray | None = None
    prefix = b""
    while at < end and records_max and len(found) < keys_max:
        size, store_ms, body_size = _HEAD.unpack_from(records, at)
        topic_at = at + BODY_AT + body_size + 1
        properties_at = topic_at + records[topic_at - 1] + 2
        if (field := records[topic_at : properties_at - 2]) != topic:
            topic, prefix = field, bytes(field) + b"#"
        for key in _keys_between(records, properties_at, at + size):
            found.append((_hash(prefix, key), log_offset, store_ms))
        at += size
        log_offset += size
        records_max -= 1
    return found, at - begin


def _keys_between(data: bytes | bytearray, start: int, end: int) -> list[bytes | bytearray]:
    """The keys in the properties that stand from `start` to `end` of `data`."""
    unique, keys = property_value(data, _UNIQ_KEY, start, end), property_value(data, _KEYS, start, end)
    if keys:
        return [key for key in [unique, *keys.split(_SEPARATOR)] if key]
    return [unique] if unique else []


def _hash(prefix: bytes, key: bytes | bytearray) -> int:
    """The absolute hash of the two together; the usual key is ASCII and needs no text."""
    if key.isascii():
        value = (_prefix_part(prefix, len(key)) + byte_string_hash(key)) & 0xFFFF_FFFF
    else:
        value = java_string_hash.__wrapped__((prefix + key).decode()) & 0xFFFF_FFFF
    if value & 0x8000_0000:
        value = 0x1_0000_0000 - value
    return value & 0x7FFF_FFFF  # the minimum has no absolute value in Java, and counts as 0


@lru_cache(maxsize=4_096)
def _prefix_part(prefix: bytes, key_bytes: int) -> int:
    """What the prefix adds to the hash of a key of this length behind it."""
    return java_string_hash.__wrapped__(prefix.decode()) * pow(31, key_bytes, 1 << 32)

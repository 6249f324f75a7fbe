"""Record batches on their way into the log: checked once, patched in place once, found by their keys."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct
from typing import Any, Generic, TypeVar, overload

from mqproto.properties import (
    CRC32,
    DELAY,
    DUE_TIMESTAMP,
    HALF_TIMESTAMP,
    KEY_SEPARATOR,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    REAL_QID,
    REAL_TOPIC,
    RESERVED,
    SCHEDULE_POSITION,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_STATE,
    UNIQ_KEY,
    WAIT,
    PropertiesError,
    byte_string_hash,
    decode_properties,
    java_string_hash,
    property_start,
    property_value,
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
    KEYS_MAX,
    MESSAGE_MAGIC,
    OFFSETS,
    OFFSETS_AT,
    PRODUCER_PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    STORE,
    STORE_AT,
    TAG_BYTES_MAX,
    UNIQ_KEY_BYTES_MAX,
    Record,
)

# `check_batch` rejects a batch whole or accepts it whole. `patch_batch` gives its records their places. Between them
# they touch each message once; nothing here makes an object for a message.

ItemT = TypeVar("ItemT")

CQ_ENTRY = Struct(">qiq")  # log offset, size, tag hash: 20 bytes (mechanism S3)

# size, magic, body CRC, queue id, sysflag, body size; the x's are what a check does not need
_CHECKED_HEAD = Struct(">iiii20xi44xi")
_QUEUE_ID, _QUEUE_ID_AT = Struct(">i"), 12
_SYS_FLAGS_REJECTED = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6
_CRC_DIGITS_AND_SEPARATOR = CRC_DIGITS + 1

# Properties that need no second look: well-formed, none that the broker acts on, no reserved one twice, the empty CRC
# last. Group 2 is the tag; `(?(2)(?!))` fails when that group has matched before.
_PLAIN_PROPERTIES = re.compile(
    rb"(?:UNIQ_KEY\x01(?(1)(?!))([^\x01\x02]{0,%d}+)\x02"
    rb"|TAGS\x01(?(2)(?!))([^\x01\x02]{0,%d}+)\x02"
    rb"|KEYS\x01(?(3)(?!))([^\x01\x02 ]*+(?: [^\x01\x02 ]*+){0,%d}+)\x02"
    rb"|PSEQ\x01(?(4)(?!))([^\x01\x02]*+)\x02"
    rb"|(?!(?:UNIQ_KEY|TAGS|KEYS|PSEQ|DELAY|WAIT|PGROUP|RETRY_TOPIC|ORIGIN_MESSAGE_ID|MAX_RECONSUME_TIMES"
    rb"|CHECK_IMMUNITY_TIME_IN_SECONDS)\x01|TIMER_|TRAN|REAL_|__)[^\x01\x02]++\x01[^\x01\x02]*+\x02)*+"
    % (UNIQ_KEY_BYTES_MAX, TAG_BYTES_MAX, KEYS_MAX - 1)
    + re.escape(CRC_PLACEHOLDER)
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
# Ways to ask for a delay, of which a record has one at the most, and how many digits each takes.
_DELAY_DIGITS = {DELAY: 3, TIMER_DELAY_MS: 10, TIMER_DELIVER_MS: 15}
_TIMED = -1  # among delay levels: the record has a due time of its own


class BatchError(ValueError):
    """A batch that cannot be stored; the message says which record and why."""


@dataclass(slots=True)
class Batch:
    """A checked batch for one queue. `delay_level` is 0, or the level that all of its records ask for.

    A `timed` batch has records that each say for how long, or until when, they wait.

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
    timed: bool = False

    @property
    def count(self) -> int:
        return len(self.sizes)

    @property
    def delayed(self) -> bool:
        """Whether its records are not to be delivered yet."""
        return self.timed or self.delay_level > 0

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

    def for_queue(self, queue_id: int) -> Batch:
        """A copy of this batch for another queue of its topic; this one may still come to its own."""
        buffer, at = bytearray(self.buffer), 0
        for size in self.sizes:
            _QUEUE_ID.pack_into(buffer, at + _QUEUE_ID_AT, queue_id)
            at += size
        return replace(self, queue_id=queue_id, buffer=buffer)


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
        properties_size = record_end - properties_at
        said_size = int.from_bytes(records[properties_at - 2 : properties_at], "big")
        if said_size != properties_size or properties_size > PRODUCER_PROPERTIES_BYTES_MAX:
            raise _length_error(len(sizes), size, said_size, properties_size)
        transaction = sys_flag & FLAG_TRANSACTION_MASK
        if sys_flag & _SYS_FLAGS_REJECTED or transaction not in (0, FLAG_TRANSACTION_PREPARED):
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
            tag = plain[2]
            codes.append(java_string_hash(tag.decode()) if tag else 0)
        else:
            values = _look_closer(len(sizes), properties, prepared=transaction != 0)
            waits |= values.get(WAIT) != "false"
            levels.add(_delay_level(len(sizes), values))
            codes.append(java_string_hash(values.get(TAGS, "")))
        sizes.append(size)
        at = record_end
    if not sizes or len(sizes) != count:
        raise BatchError(f"the batch says {count} records and holds {len(sizes)}")
    if len(levels) > 1:
        named = ", ".join("timed" if level == _TIMED else str(level) for level in sorted(levels))
        raise BatchError(f"the batch mixes the delay levels {named}; a batch has one, or all of it is timed")
    level = levels.pop()
    return Batch(
        topic, queue_id, bytearray(records), sizes, codes, max(level, 0), prepared, waits, timed=level == _TIMED
    )


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


@overload
def runs(items: Iterable[Batch], bytes_max: int) -> Iterator[list[Batch]]: ...
@overload
def runs(items: Iterable[ItemT], bytes_max: int, batch_of: Callable[[ItemT], Batch]) -> Iterator[list[ItemT]]: ...
def runs(
    items: Iterable[Any], bytes_max: int, batch_of: Callable[[Any], Batch] = lambda batch: batch
) -> Iterator[list[Any]]:
    """The items in order, in lists whose batches take `bytes_max` bytes at most; a larger one stands alone.

    `batch_of` tells the batch of an item; without it the items are batches.
    """
    run: list[Any] = []
    taken = 0
    for item in items:
        size = len(batch_of(item).buffer)
        if run and taken + size > bytes_max:
            yield run
            run, taken = [], 0
        run.append(item)
        taken += size
    if run:
        yield run


def _text(number: int, properties: bytes) -> str:
    try:
        return properties.decode()
    except UnicodeDecodeError as error:
        raise BatchError(f"record {number}: the properties are not UTF-8 at byte {error.start}") from None


def _look_closer(number: int, properties: str, *, prepared: bool) -> dict[str, str]:
    """Properties that are not plain; raises BatchError with what is wrong."""
    body, placeholder = properties[:-CRC_BYTES], properties[-CRC_BYTES:]
    if placeholder.encode() != CRC_PLACEHOLDER or (body and not body.endswith(PROPERTY_SEPARATOR)):
        raise BatchError(f"record {number} does not end with an empty CRC property")
    try:
        values = decode_properties(body.encode())
    except PropertiesError as error:
        raise BatchError(f"record {number}: {error}") from None
    if (problem := _limit_problem(body, values)) is not None:
        raise BatchError(f"record {number}{problem}")
    for name in _BROKER_PROPERTIES:
        if name in values:
            raise BatchError(f"record {number} has the property {name}, which belongs to the broker")
    if TRAN_MSG in values and not prepared:
        raise BatchError(f"record {number} has the property {TRAN_MSG} and not the prepared bit in its sysflag")
    return values


def _limit_problem(text: str, values: dict[str, str]) -> str | None:
    """How well-formed properties break the limits of mqproto.record, as the end of a sentence; None if they do not."""
    if text.count(NAME_VALUE_SEPARATOR) > len(values):
        names = Counter(item.partition(NAME_VALUE_SEPARATOR)[0] for item in text.split(PROPERTY_SEPARATOR))
        if repeated := sorted(name for name in RESERVED if names[name] > 1):
            return f" has the property {repeated[0]} more than once; it is allowed once"
    for name, bytes_max in ((TAGS, TAG_BYTES_MAX), (UNIQ_KEY, UNIQ_KEY_BYTES_MAX)):
        if (size := len(values.get(name, "").encode())) > bytes_max:
            return f": the property {name} takes {size:,} bytes; at most {bytes_max} are allowed"
    if (count := len([key for key in values.get(KEYS, "").split(KEY_SEPARATOR) if key])) > KEYS_MAX:
        return f" has {count:,} keys; at most {KEYS_MAX} are allowed"
    return None


def _delay_level(number: int, values: dict[str, str]) -> int:
    """The delay level that a record asks for; 0 for none, and _TIMED for a due time of its own. Raises BatchError."""
    asked = [name for name in _DELAY_DIGITS if name in values]
    if len(asked) > 1:
        raise BatchError(f"record {number} has the properties {' and '.join(asked)}; one of them is allowed")
    for name in asked:
        value = values[name]
        if not value.isascii() or not value.isdigit() or len(value) > _DELAY_DIGITS[name]:
            what = "delay level" if name == DELAY else name
            raise BatchError(f"record {number}: the {what} {value!r} is not a whole number from 0 up")
    if not asked:
        return 0
    return int(values[DELAY]) if asked == [DELAY] else _TIMED


def _length_error(number: int, size: int, said_size: int, properties_size: int) -> BatchError:
    if said_size != properties_size:
        return BatchError(f"record {number}: the length of its properties does not fit its size {size}")
    return BatchError(
        f"record {number}: the properties take {properties_size:,} bytes; at most "
        f"{PRODUCER_PROPERTIES_BYTES_MAX:,} are allowed; move large values into the body"
    )


def _shape_error(number: int, magic: int, size: int, body_size: int, left: int) -> BatchError:
    if magic != MESSAGE_MAGIC:
        return BatchError(
            f"record {number}: the magic is 0x{magic & 0xFFFFFFFF:08X}, not 0x{MESSAGE_MAGIC & 0xFFFFFFFF:08X}"
        )
    if body_size <= 0:
        return BatchError(f"record {number}: the body takes {body_size} bytes; at least 1 is needed")
    return BatchError(f"record {number}: size {size} and body {body_size} do not fit the {left} bytes that are left")


# The keys of a message in the index (mechanisms M2, S4): its unique key, and each of its user's keys.
#
# A key is hashed as `topic#key` by Java's String.hashCode; the index keeps the absolute value, and 0 for the minimum,
# which has none.

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


KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(slots=True)
class Amount:
    """Messages and the bytes of their records, since the broker was opened."""

    messages: int = 0
    bytes: int = 0


class Traffic(Generic[KeyT]):
    """How much goes in and out: plain numbers, added on the way of every frame, read beside it.

    By topic, or by whatever else tells them apart.
    """

    def __init__(self) -> None:
        self._amounts: dict[KeyT, Amount] = {}

    def add(self, key: KeyT, messages: int, size: int) -> None:
        """So many messages with so many bytes more."""
        amount = self._amounts.get(key)
        if amount is None:
            amount = self._amounts[key] = Amount()
        amount.messages += messages
        amount.bytes += size

    def all(self) -> list[tuple[KeyT, Amount]]:
        """Every key with its amount; also for another thread than the one that adds."""
        return list(self._amounts.items())

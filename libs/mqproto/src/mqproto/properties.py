"""Message properties: names, and the one text form they have on wire and disk: name \\x01 value \\x02, repeated.

Beside them the hash of such text: Java's String.hashCode, which RocketMQ's consume queue and index store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
_PROPERTY_END = 2
_SEPARATOR_BYTES = PROPERTY_SEPARATOR.encode()
PROPERTIES_BYTES_MAX = 65_535  # two unsigned bytes hold the length; what producers may fill: record.py

# RocketMQ's names (its MessageConst), as far as the queue uses them.
KEYS = "KEYS"
TAGS = "TAGS"
DELAY = "DELAY"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
WAIT = "WAIT"
UNIQ_KEY = "UNIQ_KEY"
PGROUP = "PGROUP"
TRAN_MSG = "TRAN_MSG"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CRC32 = "__CRC32#"

# Hourglass's own: "level:queue offset" of the waiting record that this one delivers, carries over, or takes back.
SCHEDULE_POSITION = "__SCHEDULE_POSITION"

# Hourglass's own: when a delayed record is due, milliseconds since 1970.
DUE_TIMESTAMP = "__DUE_TIMESTAMP"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"

# Hourglass's own: how the transaction of an op message, or of an operator's mark, has ended, or that it was parked.
TRANSACTION_STATE = "__TRANSACTION_STATE"

# Hourglass's own: when the first half message of a transaction was stored, milliseconds since 1970.
HALF_TIMESTAMP = "__HALF_TIMESTAMP"

# Hourglass's own: "producer id:epoch:sequence" of a record that its producer has numbered (broker_service.proto).
PRODUCER_SEQUENCE = "PSEQ"

# Hourglass's own: "what:queue offset", what an operator has done with the dead letter at this offset of the queue.
DEAD_LETTER_MARK = "__DEAD_LETTER_MARK"

# Hourglass's own: the queue offset of the dead letter that was edited into this one.
DEAD_LETTER_EDIT = "__DEAD_LETTER_EDIT"

# Hourglass's own, of a dead letter: what its last listener answered or raised, and the client id of that member.
FAILURE = "__FAILURE"
FAILED_MEMBER = "__FAILED_MEMBER"
EPOCH_DIGITS_MAX, SEQUENCE_DIGITS_MAX = 9, 18

# Producer ids from here on, to twice that, belong to producers that come back under the same id as another process: a
# broker remembers what they have numbered for days. Below are those that clients draw, and need for an hour (ADR 15).
RETURNING_PRODUCERS_FROM = 1 << 62

# The last of these belong to one write each, and are never used again after it: for an hour, too (ADR 114).
WRITE_PRODUCERS_FROM = 2 * RETURNING_PRODUCERS_FROM - (1 << 52)
_PRODUCER_SEQUENCE_VALUE = re.compile(
    rb"([0-9a-f]{16}):(\d{1,%d}):(\d{1,%d})" % (EPOCH_DIGITS_MAX, SEQUENCE_DIGITS_MAX)
)

KEY_SEPARATOR = " "
DELAY_MS_MAX = 40 * 24 * 3600 * 1000  # 40 days: how long a message may wait, whatever says so

# What a producer may not set: each has a method or belongs to the broker.
RESERVED = frozenset(
    {
        KEYS, TAGS, DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS, CHECK_IMMUNITY_TIME_IN_SECONDS, WAIT, UNIQ_KEY, PGROUP,
        TRAN_MSG, REAL_TOPIC, REAL_QID, RETRY_TOPIC, ORIGIN_MESSAGE_ID,
        MAX_RECONSUME_TIMES, CRC32, SCHEDULE_POSITION, DUE_TIMESTAMP,
        TRANSACTION_CHECK_TIMES, TRANSACTION_STATE, HALF_TIMESTAMP, PRODUCER_SEQUENCE,
        DEAD_LETTER_MARK, DEAD_LETTER_EDIT, FAILURE, FAILED_MEMBER,
    }
)  # fmt: skip

_BASE = 31
_DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTU"
_REMAINDERS = bytes(_DIGITS[code % _BASE] for code in range(256))
_QUOTIENTS = bytes(_DIGITS[code // _BASE] for code in range(256))
_PART_BYTES = 256  # int() takes time by the square of the digits, and rejects more than 4,300
_PART_POWER = pow(_BASE, _PART_BYTES, 1 << 32)


class PropertiesError(ValueError):
    """Properties that cannot be written, or bytes that are none."""


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The text form in UTF-8, every property closed by its separator. Raises PropertiesError."""
    parts = []
    for name, value in properties.items():
        text = f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}"
        if not name or text.count(NAME_VALUE_SEPARATOR) != 1 or text.count(PROPERTY_SEPARATOR) != 1:
            raise PropertiesError(
                f"property {name!r}: names are not empty, and \\x01 and \\x02 are not allowed in them"
            )
        parts.append(text)
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise PropertiesError(f"properties have to be text that UTF-8 can hold: {error.reason}") from error


def decode_properties(data: bytes) -> dict[str, str]:
    """The inverse; a later property of the same name wins, as in RocketMQ. Raises PropertiesError."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PropertiesError(f"properties are not UTF-8: {error.reason} at byte {error.start}") from error
    properties = {}
    for item in text.split(PROPERTY_SEPARATOR):
        if not item:
            continue
        name, separator, value = item.partition(NAME_VALUE_SEPARATOR)
        if not separator or not name or NAME_VALUE_SEPARATOR in value:
            raise PropertiesError(f"the property {item!r} is not one name, \\x01 and one value")
        properties[name] = value
    return properties


def producer_sequence_start(producer_id: int, epoch: int) -> str:
    """The value of PRODUCER_SEQUENCE up to the number, which follows in decimal digits."""
    return f"{producer_id:016x}:{epoch}:"


def parse_producer_sequence(value: bytes | bytearray) -> tuple[int, int, int] | None:
    """(producer id, epoch, number) of a value of PRODUCER_SEQUENCE; None when it is none."""
    match = _PRODUCER_SEQUENCE_VALUE.fullmatch(value)
    return (int(match[1], 16), int(match[2]), int(match[3])) if match else None


def property_start(name: str) -> bytes:
    """How a property of this name begins in the text form; for `property_value`."""
    return f"{name}{NAME_VALUE_SEPARATOR}".encode()


def property_value(data: bytes | bytearray, beginning: bytes, start: int, end: int) -> bytes | bytearray:
    """The value of one property in the text form that stands from `start` to `end` of `data`; empty without it.

    Of several with this name the last one counts, as in `decode_properties`.
    """
    at = data.rfind(beginning, start, end)
    while at > start and data[at - 1] != _PROPERTY_END:  # the end of a longer name
        at = data.rfind(beginning, start, at + len(beginning) - 1)
    return data[at + len(beginning) : data.index(_PROPERTY_END, at, end)] if at >= 0 else b""


class EncodedProperties:
    """The text form as it stands in a record, asked for single properties: cheaper than taking all of it apart."""

    __slots__ = ("_text",)

    def __init__(self, text: bytes) -> None:
        self._text = _SEPARATOR_BYTES + text

    def get(self, name: str, /) -> str | None:
        """The value of the property, or None; of several with this name the last one, as `decode_properties` says.

        Raises PropertiesError when the value is not UTF-8.
        """
        beginning = _separated_start(name)
        at = self._text.rfind(beginning)
        if at < 0:
            return None
        begin = at + len(beginning)
        end = self._text.find(_SEPARATOR_BYTES, begin)
        try:
            return self._text[begin : end if end >= 0 else None].decode()
        except UnicodeDecodeError as error:
            raise PropertiesError(f"property {name!r} is not UTF-8: {error.reason}") from error


@lru_cache(maxsize=1_024)
def _separated_start(name: str) -> bytes:
    return _SEPARATOR_BYTES + property_start(name)


@lru_cache(maxsize=4_096)  # producers use few tags, and a miss costs a microsecond
def java_string_hash(text: str) -> int:
    """The hash of `text` over its UTF-16 units: a signed 32-bit integer, s[0]*31^(n-1) + ... + s[n-1]."""
    if text.isascii():
        value = byte_string_hash(text.encode())
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        value = 256 * byte_string_hash(units[::2]) + byte_string_hash(units[1::2])
    value &= 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def byte_string_hash(data: bytes | bytearray) -> int:
    """The same over bytes instead of units, not reduced to 32 bits: the hash of text that is ASCII."""
    if len(data) > _PART_BYTES:
        part = data[-_PART_BYTES:]
        value, power = byte_string_hash(part), _PART_POWER
        for at in range(len(data) - 2 * _PART_BYTES, -_PART_BYTES, -_PART_BYTES):
            value += power * byte_string_hash(data[max(at, 0) : at + _PART_BYTES])
            power = power * _PART_POWER & 0xFFFF_FFFF
        return value
    if not data:
        return 0
    return int(data.translate(_REMAINDERS), _BASE) + _BASE * int(data.translate(_QUOTIENTS), _BASE)

"""Messages, their queues, and the results of sends.

A Message is what is sent; a MessageExt is one that a broker has stored and a consumer receives. Bodies may be
compressed on the way; times to wait are checked here, and ids are made and read here.

Invariants: no two unique ids of one maker are equal; a moment on the wire is never before the one that was asked for.
"""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from mqclient.errors import IllegalArgumentError, MessageRejectedError, UnreadableBodyError
from mqproto.codes import ResponseCode
from mqproto.names import RETRY_PREFIX, parse_address
from mqproto.properties import (
    DELAY_MS_MAX,
    KEY_SEPARATOR,
    KEYS,
    PGROUP,
    RESERVED,
    RETRY_TOPIC,
    TAGS,
    UNIQ_KEY,
    WAIT,
    decode_properties,
)
from mqproto.record import (
    FLAG_COMPRESSED,
    FLAG_COMPRESSION_LZ4,
    FLAG_COMPRESSION_TYPE_MASK,
    FLAG_COMPRESSION_ZLIB,
    FLAG_COMPRESSION_ZSTD,
    Record,
    RecordError,
    SealedRecord,
    pack_ip,
    unpack_ip,
)
from osenv import Rng

QUEUES_PER_REQUEST_MAX = 16_384  # what brokers take in one request

PORT_MAX = 65_535
UNIQUE_ID_CHARACTERS = 32

_EPOCH = datetime.fromtimestamp(0, UTC)
_MS = timedelta(milliseconds=1)
_DAYS_MAX = timedelta(milliseconds=DELAY_MS_MAX).days

ZLIB_FLAGS = FLAG_COMPRESSED | FLAG_COMPRESSION_ZLIB

# A producer takes bodies of up to 4 MiB before it compresses them (mechanism M7), one of RocketMQ more if it is told
# so. A few KiB can become gigabytes, so there has to be an end.
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
_ZLIB_TYPES = frozenset({0, FLAG_COMPRESSION_ZLIB})
_OTHER_TYPES = {FLAG_COMPRESSION_LZ4: "LZ4", FLAG_COMPRESSION_ZSTD: "ZSTD"}


@dataclass(slots=True)
class Message:
    """One message (mechanisms M1-M4). Nothing is checked here; `Producer.send` checks and raises MessageRejectedError.

    `tag` is the one second-level category that consumers filter by. `keys` find the message again in the broker's
    index: one key, or several. `flag` is the application's own number. With `wait_store_msg_ok` False the broker may
    acknowledge the message before it is on disk, whatever its policy.

    One of three may say that it is delivered later, in 40 days at most: `delay_level` 1 to 18 (mechanism D1),
    `delay_ms` from when the broker stores it, or `deliver_at`, a time with its zone; one that has passed means at once.
    By the broker's clock no message comes early. The message of a transaction waits from its commit on.

    Sending does not change the message; a message sent twice is two messages, with two unique ids. Nor does a message
    have a transaction id: each try to send it as a half message has one, and TransactionSendResult and MessageExt tell
    it.
    """

    topic: str
    body: bytes
    _: KW_ONLY
    tag: str | None = None
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] | None = None
    delay_level: int = 0
    delay_ms: int = 0
    deliver_at: datetime | None = None
    flag: int = 0
    wait_store_msg_ok: bool = True

    def put_user_property(self, name: str, value: str) -> None:
        """Add a property of the application's; the same name again overwrites (mechanism M4)."""
        self.properties = {**(self.properties or {}), name: value}


class MessageQueue(NamedTuple):
    """Ordered by topic, broker name and number, as every member of a group has to sort them (mechanism C13)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


def by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
    """The queues of each broker with its name, both in the order in which they come; as many as fit one request.

    A broker whose queues do not fit one request occurs several times.
    """
    of_brokers: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        of_brokers[queue.broker_name].append(queue)
    return [
        (name, found[begin : begin + QUEUES_PER_REQUEST_MAX])
        for name, found in of_brokers.items()
        for begin in range(0, len(found), QUEUES_PER_REQUEST_MAX)
    ]


class UniqueIdMaker:
    """Makes UNIQ_KEY values as RocketMQ does: 16 bytes in upper-case hex.

    IPv4 address (4), process id (2), a number per maker (4; RocketMQ takes the class loader's hash), milliseconds since
    the start of the month (4), counter (2). Unique as long as one maker makes fewer than 65,536 ids a millisecond.
    """

    def __init__(self, rng: Rng, local_ip: str) -> None:
        fixed = pack_ip(local_ip).to_bytes(4, "big", signed=True) + (os.getpid() & 0xFFFF).to_bytes(2, "big")
        self._prefix = (fixed + rng.randbytes(4)).hex().upper()
        self._counter = itertools.count(rng.randrange(0, 0x1_0000))
        self._month_start_ms = self._month_end_ms = 0
        self._now_ms = -1
        self._start = ""  # of all ids of this millisecond

    def next(self, now_ms: int) -> str:
        """The next id, made at `now_ms` of the wall clock."""
        if now_ms != self._now_ms:
            if not self._month_start_ms <= now_ms < self._month_end_ms:
                self._set_month(now_ms)
            self._now_ms = now_ms
            self._start = f"{self._prefix}{now_ms - self._month_start_ms:08X}"
        return f"{self._start}{next(self._counter) & 0xFFFF:04X}"

    def _set_month(self, now_ms: int) -> None:
        start = datetime.fromtimestamp(now_ms / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(end.timestamp() * 1000)


def offset_message_id(host: str, port: int, log_offset: int) -> str:
    """The id by position: IPv4 address (4), port (4) and log offset (8) in upper-case hex.

    Empty when `host` is a name and not an address: only the broker knows then what its records carry.
    """
    try:
        packed = pack_ip(host)
    except RecordError:
        return ""
    return f"{packed & 0xFFFFFFFF:08X}{port & 0xFFFFFFFF:08X}{log_offset & 0xFFFFFFFFFFFFFFFF:016X}"


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """(host, port, log offset) of an id by position. Raises IllegalArgumentError when it is none."""
    if not re.fullmatch(r"[0-9A-Fa-f]{32}", message_id):
        raise IllegalArgumentError(f"{message_id!r} is no message id by position: that is 32 hexadecimal digits")
    ip, port, log_offset = (int(message_id[a:b], 16) for a, b in ((0, 8), (8, 16), (16, 32)))
    if not 0 < port <= PORT_MAX or log_offset >= 1 << 63:
        raise IllegalArgumentError(
            f"{message_id!r} names port {port} and log offset {log_offset}: a unique id, perhaps?"
        )
    return unpack_ip(ip - (1 << 32) if ip >> 31 else ip), port, log_offset


class IllegalDelayError(ValueError):
    """A delay that is not allowed; the message says what is."""


def checked_delay_ms(delay_ms: object) -> int:
    """The same. Raises IllegalDelayError unless it is a whole number of milliseconds, from 1 to 40 days."""
    if type(delay_ms) is not int or not 0 < delay_ms <= DELAY_MS_MAX:
        raise IllegalDelayError(
            f"delay_ms is {delay_ms!r}; allowed are 1 to {DELAY_MS_MAX:,} milliseconds ({_DAYS_MAX} days)"
        )
    return delay_ms


def check_deliver_at(deliver_at: object) -> None:
    """Raises IllegalDelayError unless it is a time that says of which zone it is."""
    if not isinstance(deliver_at, datetime):
        raise IllegalDelayError(f"deliver_at has to be a datetime, not {type(deliver_at).__name__}")
    if deliver_at.utcoffset() is None:
        raise IllegalDelayError(f"deliver_at is {deliver_at.isoformat()}, without a time zone; give it a tzinfo")


def deliver_timestamp_ms(deliver_at: datetime) -> int:
    """Milliseconds since 1970, rounded up; 0 for what is before. Of a time that `check_deliver_at` has let through."""
    return max(0, -((_EPOCH - deliver_at) // _MS))


def check_near_enough(deliver_at: datetime, now_ms: int) -> None:
    """Raises IllegalDelayError for a moment that is more than 40 days after `now_ms` (since 1970)."""
    if deliver_timestamp_ms(deliver_at) - now_ms > DELAY_MS_MAX:
        raise IllegalDelayError(f"deliver_at is {deliver_at.isoformat()}, more than {_DAYS_MAX} days from now")


def waits(message: Message) -> bool:
    """Whether the checked message is to be delivered later, or may be: at a time that may have passed."""
    return message.delay_level > 0 or message.delay_ms > 0 or message.deliver_at is not None


def check_due_time(message: Message, now_ms: int) -> None:
    """Raises MessageRejectedError for a checked message that is to wait too long after `now_ms` (since 1970)."""
    if message.deliver_at is not None:
        try:
            check_near_enough(message.deliver_at, now_ms)
        except IllegalDelayError as error:
            raise MessageRejectedError(str(error)) from error


def check_time_to_wait(message: Message) -> None:
    """Raises MessageRejectedError for a message that waits by two ways, or for no time that is allowed."""
    ways = {
        "delay_level": message.delay_level != 0,
        "delay_ms": message.delay_ms != 0,
        "deliver_at": message.deliver_at is not None,
    }
    if sum(ways.values()) > 1:
        given = " and ".join(name for name, is_given in ways.items() if is_given)
        raise MessageRejectedError(f"the message has {given}; it waits by one of {', '.join(ways)}")
    try:
        if message.deliver_at is None:
            checked_delay_ms(message.delay_ms)
        else:
            check_deliver_at(message.deliver_at)
    except IllegalDelayError as error:
        raise MessageRejectedError(str(error)) from error


def compress(body: bytes, level: int) -> bytes | None:
    """The body in zlib's format; None when that would not be smaller."""
    compressed = zlib.compress(body, level)
    return compressed if len(compressed) < len(body) else None


def decompress(body: bytes, sys_flag: int, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The body as its producer gave it. Raises UnreadableBodyError."""
    if not sys_flag & FLAG_COMPRESSED:
        return body
    kind = sys_flag & FLAG_COMPRESSION_TYPE_MASK
    if kind not in _ZLIB_TYPES:
        name = _OTHER_TYPES.get(kind, f"type {kind >> 8}")
        raise UnreadableBodyError(f"the body is compressed with {name}; this client reads zlib only")
    decompressor = zlib.decompressobj()
    try:
        result = decompressor.decompress(body, bytes_max)
    except zlib.error as error:
        raise UnreadableBodyError(f"the body is marked as compressed with zlib, and is not: {error}") from error
    if decompressor.unconsumed_tail:
        raise UnreadableBodyError(f"the body becomes larger than {bytes_max:,} bytes when it is decompressed")
    if not decompressor.eof:
        raise UnreadableBodyError("the compressed body ends before its end")
    return result


class MessageExt:
    """A view of one record; what a consumer need not look at is decoded when it is asked for."""

    def __init__(self, record: Record | SealedRecord, broker_name: str) -> None:
        self._source = record
        self.broker_name = broker_name
        self.queue_offset = record.queue_offset
        self.reconsume_times = record.reconsume_times
        self.size = record.size  # bytes in the commit log

    @property
    def body(self) -> bytes:
        """What its producer gave, also when it was compressed on its way. Raises UnreadableBodyError."""
        return self._decompressed if self._source.sys_flag & FLAG_COMPRESSED else self._source.body

    @cached_property
    def _decompressed(self) -> bytes:
        return decompress(self._source.body, self._source.sys_flag)

    @property
    def _record(self) -> Record:
        if not isinstance(self._source, Record):
            self._source = self._source.decode()
        return self._source

    @property
    def queue_id(self) -> int:
        return self._record.queue_id

    @property
    def log_offset(self) -> int:
        """Its offset in its broker's log."""
        return self._record.log_offset

    @cached_property
    def topic(self) -> str:
        """The topic that was sent to, also when the message comes from the group's retry topic (mechanism C12)."""
        if self._record.topic.startswith(RETRY_PREFIX):
            return self.properties.get(RETRY_TOPIC, self._record.topic)
        return self._record.topic

    @property
    def message_queue(self) -> MessageQueue:
        """The queue that it was read from; for a retried message a queue of the retry topic."""
        return MessageQueue(self._record.topic, self.broker_name, self.queue_id)

    @cached_property
    def properties(self) -> dict[str, str]:
        """Everything that travels beside the body, the queue's own entries included."""
        return decode_properties(self._record.properties)

    @property
    def user_properties(self) -> dict[str, str]:
        """What the producer set beside tag and keys: `properties` without the queue's own entries."""
        return {name: value for name, value in self.properties.items() if name not in RESERVED}

    @property
    def tag(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(KEYS, "").split(KEY_SEPARATOR)) if KEYS in self.properties else ()

    @property
    def flag(self) -> int:
        return self._record.flag

    @property
    def wait_store_msg_ok(self) -> bool:
        """Whether its producer wanted it on disk before the broker acknowledged it."""
        return self.properties.get(WAIT) != "false"

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer sent it, by the producer's clock."""
        return self._record.born_timestamp_ms

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored it, by the broker's clock."""
        return self._record.store_timestamp_ms

    @property
    def message_id(self) -> str:
        """The producer's unique id; the id by position for a message that has none."""
        return self.properties.get(UNIQ_KEY) or self.offset_message_id

    @property
    def transaction_id(self) -> str:
        """The transaction that it was sent in; empty for a message that was sent in none."""
        return self.properties[UNIQ_KEY] if {PGROUP, UNIQ_KEY} <= self.properties.keys() else ""

    @property
    def offset_message_id(self) -> str:
        """The id by position in the broker's log."""
        host, port = self._record.store_host
        return offset_message_id(host, port, self.log_offset)

    def __repr__(self) -> str:
        return f"<MessageExt {self.message_id} {self.message_queue} offset {self.queue_offset}>"


class SendStatus(Enum):
    """RocketMQ's names. In all four cases the message is stored; all but SEND_OK say: less safe than wished."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class LocalTransactionState(Enum):
    """RocketMQ's names: deliver the message, forget it, or ask again later (UNKNOW; UNKNOWN is the same)."""

    COMMIT_MESSAGE = "COMMIT_MESSAGE"
    ROLLBACK_MESSAGE = "ROLLBACK_MESSAGE"
    UNKNOW = "UNKNOW"
    UNKNOWN = "UNKNOW"


# By number, because that is what the wire has and what the hot path looks up.
STATUS_OF_CODE: dict[int, SendStatus] = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(slots=True)
class SendResult:
    """`message_id` is the producer's unique id; `queue_offset` and `log_offset` are where the broker stored it."""

    send_status: SendStatus
    message_id: str
    message_queue: MessageQueue
    queue_offset: int
    log_offset: int
    broker_address: str

    @property
    def offset_message_id(self) -> str:
        """The id by position (mechanism M8).

        Empty when the broker is reached by a name instead of an IPv4 address, and when that part of its log is gone.
        """
        return _offset_message_id(self.broker_address, self.log_offset)


@dataclass(slots=True)
class BatchSendResult(SendResult):
    """Where the messages of a batch were stored; the offsets of SendResult are those of the first.

    `message_id` and `offset_message_id` have the ids of all, with commas between, as in RocketMQ. `places` are the
    queue and log offsets of the messages.
    """

    message_ids: tuple[str, ...]
    places: tuple[tuple[int, int], ...]

    @property
    def offset_message_id(self) -> str:
        """The ids by position (mechanism M8), with commas between."""
        return ",".join(_offset_message_id(self.broker_address, log_offset) for _, log_offset in self.places)


@dataclass(slots=True)
class TransactionSendResult(SendResult):
    """Where the half message was stored, and what the local transaction came to.

    Offsets are those of the half topic; the message gets others when it is committed.
    """

    local_transaction_state: LocalTransactionState

    @property
    def transaction_id(self) -> str:
        return self.message_id


def _offset_message_id(address: str, log_offset: int) -> str:
    host, port = parse_address(address)
    return offset_message_id(host, port, log_offset) if log_offset >= 0 else ""

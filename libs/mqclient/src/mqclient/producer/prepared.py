"""Messages on their way: checked, encoded once, and the same over all tries to send them.

A message that breaks a rule is rejected here with a sentence that says what is allowed
(docs/reference/producer-errors.md). This is the hot path: a message costs one pass over its few
fields, and the text of its properties is built once.

A message that is sent never has a unique id yet: `Message` has no place for one, and the property's name is reserved.
So each send makes a new one, and a message that the application sends again is a new message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from opentelemetry.trace import SpanContext

from mqclient.connection.frames import (
    SEQUENCE_PROPERTY_BYTES_MAX,
    PendingBatch,
    PendingSend,
    SendOptions,
    SequenceAllocator,
    Stored,
)
from mqclient.errors import IllegalArgumentError, MessageRejectedError
from mqclient.message import (
    STATUS_OF_CODE,
    BatchSendResult,
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
    UniqueIdMaker,
    check_due_time,
    check_time_to_wait,
    deliver_timestamp_ms,
    waits,
)
from mqproto.names import RETRY_PREFIX, IllegalNameError, check_user_topic
from mqproto.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    DELAY,
    DELAY_MS_MAX,
    KEY_SEPARATOR,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PGROUP,
    PROPERTY_SEPARATOR,
    RESERVED,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
)
from mqproto.record import (
    BODY_BYTES_MAX,
    CRC_BYTES,
    FLAG_TRANSACTION_PREPARED,
    KEYS_MAX,
    PRODUCER_PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    TAG_BYTES_MAX,
    encode_record,
)
from osenv import Clock
from telemetry.context import TRACEPARENT, carried

DELAY_LEVEL_MAX = 18  # mechanism D1: 18 levels
FLAG_MIN, FLAG_MAX = -(2**31), 2**31 - 1
TAG_ALTERNATIVE = "||"  # separates the tags of a subscription
TAG_ANY = "*"
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
_PROPERTIES_BYTES_ALLOWED = PRODUCER_PROPERTIES_BYTES_MAX - CRC_BYTES - SEQUENCE_PROPERTY_BYTES_MAX

CHECK_IMMUNITY_S_MAX = DELAY_MS_MAX // 1_000


@lru_cache(maxsize=4_096)
def topic_bytes(topic: str) -> bytes:
    """The topic as a record has it. Raises MessageRejectedError unless users may send to it."""
    if not isinstance(topic, str):
        raise MessageRejectedError(f"the topic has to be text, not {type(topic).__name__}")
    try:
        check_user_topic(topic)
    except IllegalNameError as error:
        raise MessageRejectedError(str(error)) from error
    return topic.encode()


def check_message(message: Message, body_bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The topic as a record has it.

    Raises MessageRejectedError unless topic, body, delay and flag are what the queue takes.
    """
    if not isinstance(message, Message):
        raise MessageRejectedError(f"send takes a Message, not {type(message).__name__}")
    topic = topic_bytes(message.topic)
    body = message.body
    if not isinstance(body, bytes):
        raise MessageRejectedError(
            f"the body has to be bytes, not {type(body).__name__}: encode it, as in json.dumps(body).encode()"
        )
    if not 0 < len(body) <= body_bytes_max:
        what = "is empty" if not body else f"has {len(body):,} bytes"
        raise MessageRejectedError(f"the body {what}; it takes 1 to {body_bytes_max:,} bytes")
    level = message.delay_level
    if type(level) is not int or not 0 <= level <= DELAY_LEVEL_MAX:
        raise MessageRejectedError(f"the delay level is {level!r}; allowed are 0 (at once) to {DELAY_LEVEL_MAX}")
    if message.delay_ms != 0 or type(message.delay_ms) is not int or message.deliver_at is not None:
        check_time_to_wait(message)
    if type(message.flag) is not int or not FLAG_MIN <= message.flag <= FLAG_MAX:
        raise MessageRejectedError(f"the flag is {message.flag!r}; it has to be an integer of 32 bits")
    if message.wait_store_msg_ok is not True and message.wait_store_msg_ok is not False:
        raise MessageRejectedError(f"wait_store_msg_ok is {message.wait_store_msg_ok!r}; it has to be True or False")
    return topic


def message_properties(message: Message, unique_id: str, queue_own: Mapping[str, str] = NO_PROPERTIES) -> str:
    """The text form of everything beside the body, with properties of the queue's own. Raises MessageRejectedError.

    It can be encoded as UTF-8, and has room for the number of the record.
    """
    text = f"{UNIQ_KEY}\x01{unique_id}\x02"
    count = 1
    if queue_own:
        text += "".join(f"{name}\x01{value}\x02" for name, value in queue_own.items())
        count += len(queue_own)
    tag: object = message.tag
    if tag is not None:
        if not isinstance(tag, str) or not _is_tag(tag):
            raise MessageRejectedError(_why_it_is_no_tag(tag))
        text += f"{TAGS}\x01{tag}\x02"
        count += 1
    if message.keys:
        text += f"{KEYS}\x01{_joined_keys(message.keys)}\x02"
        count += 1
    if message.delay_level:
        text += f"{DELAY}\x01{message.delay_level}\x02"
        count += 1
    elif message.delay_ms:
        text += f"{TIMER_DELAY_MS}\x01{message.delay_ms}\x02"
        count += 1
    elif message.deliver_at is not None:
        text += f"{TIMER_DELIVER_MS}\x01{deliver_timestamp_ms(message.deliver_at)}\x02"
        count += 1
    if not message.wait_store_msg_ok:
        text += f"{WAIT}\x01false\x02"
        count += 1
    if message.properties:
        text += _user_properties(message.properties)
        count += len(message.properties)
    # One count finds a separator in any of the values; only then is it worth asking in which.
    if text.count(NAME_VALUE_SEPARATOR) != count or text.count(PROPERTY_SEPARATOR) != count:
        raise MessageRejectedError(_where_a_separator_is(message))
    size = len(text) if text.isascii() else _bytes_of(text)
    if size > _PROPERTIES_BYTES_ALLOWED:
        raise MessageRejectedError(
            f"tag, keys and properties take {size:,} bytes; at most {_PROPERTIES_BYTES_ALLOWED:,} are allowed; "
            "move large values into the body"
        )
    return text


def with_properties(text: str, properties: Mapping[str, str]) -> str:
    """The properties of a checked message with these added, which are text on the wire as they are; if they fit."""
    longer = text + "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return longer if (len(longer) if longer.isascii() else _bytes_of(longer)) <= _PROPERTIES_BYTES_ALLOWED else text


def record_bytes_max(message: Message, properties: str) -> int:
    """How large the record of a checked message with these properties can become."""
    return (
        RECORD_BYTES_MIN + len(message.topic) + len(message.body) + _bytes_of(properties) + SEQUENCE_PROPERTY_BYTES_MAX
    )


def _bytes_of(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise MessageRejectedError(f"properties have to be text that UTF-8 can hold: {error.reason}") from error


@lru_cache(maxsize=4_096)
def _is_tag(text: str) -> bool:
    return (
        text not in {"", TAG_ANY}
        and TAG_ALTERNATIVE not in text
        and text == text.strip()
        and len(text.encode(errors="surrogatepass")) <= TAG_BYTES_MAX
    )


def _why_it_is_no_tag(tag: object) -> str:
    if isinstance(tag, str) and (size := len(tag.encode(errors="surrogatepass"))) > TAG_BYTES_MAX:
        return f"the tag takes {size:,} bytes; at most {TAG_BYTES_MAX} are allowed"
    return (
        f"the tag {tag!r} cannot be subscribed to; it has to be text, not empty, not {TAG_ANY!r}, "
        f"without {TAG_ALTERNATIVE!r} and without space around it"
    )


def _joined_keys(keys: object) -> str:
    if isinstance(keys, str) and KEY_SEPARATOR not in keys:
        return keys
    if not isinstance(keys, (str, Sequence)):
        raise MessageRejectedError(f"keys have to be one text or a sequence of texts, not {type(keys).__name__}")
    listed = (keys,) if isinstance(keys, str) else keys
    for key in listed:
        if not isinstance(key, str) or not key or KEY_SEPARATOR in key:
            raise MessageRejectedError(f"the key {key!r} has to be text, not empty and without a space")
    if len(listed) > KEYS_MAX:
        raise MessageRejectedError(f"the message has {len(listed):,} keys; at most {KEYS_MAX} are allowed")
    return KEY_SEPARATOR.join(listed)


def _user_properties(properties: Mapping[Any, Any]) -> str:
    parts = []
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise MessageRejectedError(f"the property {name!r}: {value!r} has to have a name and be text")
        if name in RESERVED:
            raise MessageRejectedError(f"the property {name!r} belongs to the queue; choose another name")
        parts.append(f"{name}\x01{value}\x02")
    return "".join(parts)


def _where_a_separator_is(message: Message) -> str:
    keys = message.keys if isinstance(message.keys, str) else KEY_SEPARATOR.join(message.keys)
    fields = {"tag": message.tag or "", "keys": keys}
    for name, value in (message.properties or {}).items():
        fields[f"property {name!r}"] = name + value
    bad = [name for name, text in fields.items() if NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text]
    return f"\\x01 and \\x02 are not allowed in names and values, they separate them on the wire: {', '.join(bad)}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the messages of one producer come from, and how large their bodies may be."""

    group: str
    unique_ids: UniqueIdMaker
    clock: Clock
    ip: int
    body_bytes_max: int


class PreparedMessage:
    """One message. Raises MessageRejectedError when it breaks a rule; later changes of it are not seen any more."""

    __slots__ = (
        "_born_timestamp_ms",
        "_flag",
        "_origin",
        "_properties",
        "_reconsume_times",
        "_topic_bytes",
        "body",
        "compressible_bytes",
        "message",
        "own_batch",
        "sys_flag",
        "topic",
        "unique_id",
    )  # fmt: skip

    def __init__(self, message: Message, origin: Origin) -> None:
        self._topic_bytes = check_message(message, origin.body_bytes_max)
        self._origin = origin
        self._born_timestamp_ms = origin.clock.wall_ms()
        self._flag = message.flag
        self._reconsume_times = 0
        self.message = message
        self.topic = message.topic
        self.body = message.body
        self.compressible_bytes = len(message.body)
        self.own_batch = waits(message)
        if self.own_batch:
            check_due_time(message, self._born_timestamp_ms)
        self.sys_flag = 0
        self.unique_id = origin.unique_ids.next(self._born_timestamp_ms)
        self._properties = message_properties(message, self.unique_id)

    @property
    def messages(self) -> Sequence[Message]:
        return (self.message,)

    @property
    def record_bytes_max(self) -> int:
        return record_bytes_max(self.message, self._properties)

    @property
    def born_timestamp_ms(self) -> int:
        return self._born_timestamp_ms

    def carry(self, span: SpanContext) -> None:
        """Take this span along as W3C properties, unless the application has given the message a span already.

        A message whose properties have no room left goes without.
        """
        if TRACEPARENT not in (self.message.properties or ()):
            self._properties = with_properties(self._properties, carried(span))

    def begin_again(self) -> None:
        """Another try follows."""

    def pending(
        self, queue: MessageQueue, sequences: SequenceAllocator, deadline: float, terms: SendOptions
    ) -> PendingSend:
        """What a try hands to the stream."""
        sequence = sequences.next(queue)
        return PendingSend(queue, sequence, self.record(queue, sequences, sequence), deadline, terms)

    def record(self, queue: MessageQueue, sequences: SequenceAllocator, sequence: int) -> bytes:
        return encode_record(
            topic=self._topic_bytes,
            body=self.body,
            properties=f"{self._properties}{sequences.property_start}{sequence}\x02".encode(),
            queue_id=queue.queue_id,
            born_timestamp_ms=self._born_timestamp_ms,
            born_ip=self._origin.ip,
            flag=self._flag,
            sys_flag=self.sys_flag,
            reconsume_times=self._reconsume_times,
        )

    def result(self, pending: PendingSend, stored: Stored, address: str) -> SendResult:
        code, queue_offset, log_offset = stored
        return SendResult(STATUS_OF_CODE[code], self.unique_id, pending.queue, queue_offset, log_offset, address)


class PreparedHalf(PreparedMessage):
    """The half message of a transaction. Each try has a unique id of its own, which is the transaction's.

    The broker asks for it no sooner than `check_immunity_s` after it is stored, or by its own rule without that. Raises
    IllegalArgumentError for a time that is none.
    """

    __slots__ = ("_own", "span")

    def __init__(self, message: Message, origin: Origin, check_immunity_s: int | None = None) -> None:
        super().__init__(message, origin)
        self.span: SpanContext | None = None  # that of its send
        self._own = {TRAN_MSG: "true", PGROUP: origin.group}
        if check_immunity_s is not None:
            if type(check_immunity_s) is not int or not 0 <= check_immunity_s <= CHECK_IMMUNITY_S_MAX:
                raise IllegalArgumentError(
                    f"check_immunity_s is {check_immunity_s!r}; allowed are 0 to {CHECK_IMMUNITY_S_MAX:,} whole seconds"
                )
            self._own[CHECK_IMMUNITY_TIME_IN_SECONDS] = str(check_immunity_s)
        self.own_batch = True
        self.sys_flag = FLAG_TRANSACTION_PREPARED
        self._identify()

    def begin_again(self) -> None:
        """The half that an earlier try may have left behind must not end as the next one does."""
        self.unique_id = self._origin.unique_ids.next(self._born_timestamp_ms)
        self._identify()

    def carry(self, span: SpanContext) -> None:
        self.span = span
        super().carry(span)

    def _identify(self) -> None:
        self._properties = message_properties(self.message, self.unique_id, self._own)
        if self.span is not None:
            super().carry(self.span)


class OperatorMessage(PreparedMessage):
    """A message with properties of the queue's own.

    With `again` it is that message once more, whatever was changed: it keeps its unique id and its born time.
    """

    __slots__ = ()

    def __init__(
        self,
        message: Message,
        origin: Origin,
        queue_own: Mapping[str, str],
        *,
        again: MessageExt | None = None,
        reconsume_times: int = 0,
    ) -> None:
        super().__init__(message, origin)
        self._reconsume_times = reconsume_times
        if again is not None:
            self.unique_id = again.message_id
            self._born_timestamp_ms = again.born_timestamp_ms
        self._properties = message_properties(message, self.unique_id, queue_own)


class PreparedBatch:
    """Messages that are stored together: whole, and one behind the other (mechanism P15).

    Raises MessageRejectedError for messages that cannot share a batch.
    """

    __slots__ = ("_bytes_left", "_parts", "topic")

    own_batch = False
    compressible_bytes = 0  # as in RocketMQ

    def __init__(self, messages: Sequence[Message], origin: Origin) -> None:
        if not isinstance(messages, Sequence):
            raise MessageRejectedError(f"a batch is a sequence of messages, not {type(messages).__name__}")
        if not messages:
            raise MessageRejectedError("the batch is empty; it takes at least one message")
        self._parts = [PreparedMessage(message, origin) for message in messages]
        first = messages[0]
        self.topic = first.topic
        if self.topic.startswith(RETRY_PREFIX):
            raise MessageRejectedError(f"messages to the retry topic {self.topic!r} cannot be sent in a batch")
        for number, message in enumerate(messages):
            if message.topic != self.topic:
                raise MessageRejectedError(
                    f"message {number} of the batch is for the topic {message.topic!r}, the first one for "
                    f"{self.topic!r}; all of a batch have to have the same"
                )
            if waits(message):
                raise MessageRejectedError(f"message {number} of the batch is to be delivered later; send it alone")
            if message.wait_store_msg_ok != first.wait_store_msg_ok:
                raise MessageRejectedError(
                    f"message {number} of the batch has wait_store_msg_ok {message.wait_store_msg_ok}, the first one "
                    f"{first.wait_store_msg_ok}; all of a batch have to have the same"
                )
        size = sum(part.record_bytes_max for part in self._parts)
        if size > origin.body_bytes_max:
            raise MessageRejectedError(
                f"the batch takes {size:,} bytes; at most {origin.body_bytes_max:,} are allowed, and "
                f"MessageBatchSplitter makes smaller ones"
            )
        self._bytes_left = origin.body_bytes_max - size

    @property
    def unique_id(self) -> str:
        """As RocketMQ has it: all of them, with commas between."""
        return ",".join(part.unique_id for part in self._parts)

    @property
    def messages(self) -> Sequence[Message]:
        return tuple(part.message for part in self._parts)

    def carry(self, span: SpanContext) -> None:
        """The same for each message. A batch that has no room left for all of them goes without."""
        if len(with_properties("", carried(span))) * len(self._parts) <= self._bytes_left:
            for part in self._parts:
                part.carry(span)

    def begin_again(self) -> None:
        """Another try follows."""

    def pending(
        self, queue: MessageQueue, sequences: SequenceAllocator, deadline: float, terms: SendOptions
    ) -> PendingBatch:
        """What a try hands to the stream."""
        numbers = [sequences.next(queue) for _ in self._parts]
        records = [part.record(queue, sequences, number) for part, number in zip(self._parts, numbers, strict=True)]
        return PendingBatch(queue, numbers[0], records, deadline, terms)

    def result(self, pending: PendingSend, stored: Stored, address: str) -> BatchSendResult:
        places = pending.places(stored)
        code, queue_offset, log_offset = stored
        return BatchSendResult(
            STATUS_OF_CODE[code],
            self.unique_id,
            pending.queue,
            queue_offset,
            log_offset,
            address,
            tuple(part.unique_id for part in self._parts),
            tuple(places),
        )

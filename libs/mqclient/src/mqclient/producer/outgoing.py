"""Messages on their way: what stays the same over all tries to send them.

A message that is sent never has a unique id yet: `Message` has no place for one, and the property's name is reserved.
So each send makes a new one (MISSION M9), and a message that the application sends again is a new message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.trace import SpanContext

from mqclient.errors import IllegalArgumentError, MessageRejectedError
from mqclient.message import (
    STATUS_OF_CODE,
    BatchSendResult,
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
    UniqueIdMaker,
)
from mqclient.producer.frames import PendingBatch, PendingSend, SendTerms, Stored
from mqclient.producer.message_encoder import (
    check_due_time,
    check_message,
    message_properties,
    record_bytes_max,
    waits,
    with_properties,
)
from mqclient.producer.numbering import Numbering
from mqproto.names import RETRY_PREFIX
from mqproto.properties import CHECK_IMMUNITY_TIME_IN_SECONDS, DELAY_MS_MAX, PGROUP, TRAN_MSG
from mqproto.record import FLAG_TRANSACTION_PREPARED, encode_record
from osenv import Clock
from telemetry.context import TRACEPARENT, carried

CHECK_IMMUNITY_S_MAX = DELAY_MS_MAX // 1_000


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the messages of one producer come from, and how large their bodies may be."""

    group: str
    unique_ids: UniqueIdMaker
    clock: Clock
    ip: int
    body_bytes_max: int


class Outgoing:
    """One message. Raises MessageRejectedError when it breaks a rule; later changes of it are not seen any more."""

    __slots__ = (
        "_born_timestamp_ms", "_flag", "_origin", "_properties", "_reconsume_times", "_topic_bytes", "alone", "body",
        "compressible_bytes", "message", "sys_flag", "topic", "unique_id",
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
        self.alone = waits(message)
        if self.alone:
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

    def pending(self, queue: MessageQueue, numbering: Numbering, deadline: float, terms: SendTerms) -> PendingSend:
        """What a try hands to the stream."""
        sequence = numbering.next(queue)
        return PendingSend(queue, sequence, self.record(queue, numbering, sequence), deadline, terms)

    def record(self, queue: MessageQueue, numbering: Numbering, sequence: int) -> bytes:
        return encode_record(
            topic=self._topic_bytes,
            body=self.body,
            properties=f"{self._properties}{numbering.property_start}{sequence}\x02".encode(),
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


class OutgoingHalf(Outgoing):
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
        self.alone = True
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


class OutgoingOfOperator(Outgoing):
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


class OutgoingBatch:
    """Messages that are stored together: whole, and one behind the other (MISSION P15).

    Raises MessageRejectedError for messages that cannot share a batch.
    """

    __slots__ = ("_bytes_left", "_parts", "topic")

    alone = False
    compressible_bytes = 0  # as in RocketMQ

    def __init__(self, messages: Sequence[Message], origin: Origin) -> None:
        if not isinstance(messages, Sequence):
            raise MessageRejectedError(f"a batch is a sequence of messages, not {type(messages).__name__}")
        if not messages:
            raise MessageRejectedError("the batch is empty; it takes at least one message")
        self._parts = [Outgoing(message, origin) for message in messages]
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

    def pending(self, queue: MessageQueue, numbering: Numbering, deadline: float, terms: SendTerms) -> PendingBatch:
        """What a try hands to the stream."""
        numbers = [numbering.next(queue) for _ in self._parts]
        records = [part.record(queue, numbering, number) for part, number in zip(self._parts, numbers, strict=True)]
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

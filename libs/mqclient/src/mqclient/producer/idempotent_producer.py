"""A producer that its application numbers, so that it is recognised when it comes back as another process (ADR 15).

What a Producer numbers by itself is forgotten with its process: after a crash the application does not know what it has
sent, and sends again what may be stored. Here the application names the producer and gives each record its number, from
something that survives the crash with it, such as a checkpoint. What it sends again under the same numbers, in whatever
process, is answered by the broker with the place of what is stored.

Invariants: a batch is stored whole, and at most once under its numbers; nothing goes to another queue than the caller
said; a try is repeated only while its outcome is unknown or the broker rejects for now, always with the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance, acquire_instance
from mqclient.config import ClientConfig, ProducerConfig
from mqclient.errors import (
    BrokerRejectedError,
    BrokerUnavailableError,
    IllegalArgumentError,
    MQClientError,
    NoRouteError,
    OutcomeUnknownError,
    RetryableError,
    broker_answer_error,
)
from mqclient.lifecycle import Lifecycle, LifecycleEvent, Service
from mqclient.message import STATUS_OF_CODE, ZLIB_FLAGS, Message, MessageQueue, check_due_time, compress
from mqclient.producer.prepared import check_message, message_properties
from mqclient.transport.methods import SEND, VIEW_MESSAGE
from mqproto.codes import Permission, ResponseCode
from mqproto.properties import (
    PRODUCER_SEQUENCE,
    RETURNING_PRODUCERS_FROM,
    SEQUENCE_DIGITS_MAX,
    UNIQ_KEY,
    decode_properties,
    producer_sequence_start,
)
from mqproto.record import decode_record, encode_record, pack_ip

logger = logging.getLogger("mqclient.idempotent_producer")

PRODUCER_IDS = range(RETURNING_PRODUCERS_FROM, 2 * RETURNING_PRODUCERS_FROM)  # others a broker forgets after an hour
SEQUENCE_MAX = 10**SEQUENCE_DIGITS_MAX - 1
EPOCH = 1  # always: whichever process sends a number, it is the same message
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 2.0
REQUEST_S_MAX = 30.0  # one try; the broker may have to flush a MiB to a slow disk
TRIES_END_EARLY_S = 0.001
NO_UNIQUE_ID = "0" * 32


@dataclass(slots=True)
class SequencedMessage:
    """A message that has been checked. `properties` is the text form of all but its unique id and its number.

    `unique_id` is set by the sender before it is sent: 32 characters, from the same source as the number.
    """

    message: Message
    topic: bytes
    body: bytes
    sys_flag: int
    properties: str
    unique_id: str = NO_UNIQUE_ID


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """What stands at a place of a broker's log."""

    unique_id: str
    born_timestamp_ms: int


class IdempotentProducer(Service):
    """Sends batches that its caller has numbered; for any number of tasks of its event loop."""

    def __init__(
        self,
        url: str,
        producer_id: int,
        *,
        client_config: ClientConfig | None = None,
        producer_config: ProducerConfig | None = None,
    ) -> None:
        """`producer_id` is one of PRODUCER_IDS that no other producer has. Raises IllegalArgumentError."""
        if producer_id not in PRODUCER_IDS:
            raise IllegalArgumentError(
                f"the producer id is {producer_id:#x}; one that comes back is from {PRODUCER_IDS.start:#x} to "
                f"{PRODUCER_IDS.stop - 1:#x}"
            )
        self._url = url
        self._id = producer_id
        self._client_config = client_config or ClientConfig(request_timeout_s=REQUEST_S_MAX)
        self._config = producer_config or ProducerConfig()
        self._lifecycle = Lifecycle(f"numbered producer {producer_id:x}")
        self._property_start = f"{PRODUCER_SEQUENCE}\x01{producer_sequence_start(producer_id, EPOCH)}"
        self._instance: ClientInstance
        self._ip = 0

    async def start(self) -> None:
        """Join the client instance. Raises UnknownTransportError, IllegalArgumentError, IllegalStateError."""
        self._lifecycle.move(LifecycleEvent.START)
        self._instance = acquire_instance(self._url, self._client_config)
        self._instance.register_admin(self)  # like an admin, it keeps the instance and needs no session
        self._ip = pack_ip(self._instance.local_ip)
        self._lifecycle.move(LifecycleEvent.STARTED)

    async def shutdown(self, *, timeout_s: float = 10.0) -> None:
        """Leave the client instance, within `timeout_s`. Raises IllegalStateError."""
        self._lifecycle.move(LifecycleEvent.SHUTDOWN)
        self._instance.unregister_admin(self)
        await self._instance.release(self._instance.clock.monotonic() + timeout_s)

    async def write_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The topic's queues that may be written, sorted; also those whose master is away while a replica is there.

        Raises NoRouteError when no name server knows the topic, or none answers.
        """
        self._lifecycle.require_running()
        route = await self._instance.routes.refresh(topic)
        if route is None:
            raise NoRouteError(f"no registered broker has the topic {topic!r}")
        return tuple(
            sorted(
                MessageQueue(topic, queues.broker_name, queue_id)
                for queues in route.queues
                if queues.perm & Permission.WRITE
                for queue_id in range(queues.write_queue_count)
            )
        )

    def checked(self, message: Message) -> SequencedMessage:
        """The message as `send` takes it. Raises MessageRejectedError when it breaks a rule."""
        topic = check_message(message, self._config.max_message_size)
        if message.deliver_at is not None:
            check_due_time(message, self._instance.clock.wall_ms())
        properties = message_properties(message, NO_UNIQUE_ID).partition("\x02")[2]
        limit = self._config.compress_msg_body_over_howmuch
        if limit is not None and len(message.body) >= limit:
            compressed = compress(message.body, self._config.compress_level)
            if compressed is not None:
                return SequencedMessage(message, topic, compressed, ZLIB_FLAGS, properties)
        return SequencedMessage(message, topic, message.body, 0, properties)

    async def send(
        self,
        queue: MessageQueue,
        messages: Sequence[SequencedMessage],
        base_sequence: int,
        *,
        first_unanswered: int,
        timeout: float,  # noqa: ASYNC109 - the budget is shared by several tries
    ) -> tuple[int, int]:
        """Store the messages under the numbers from `base_sequence` on, unless they are stored under them already.

        All of them wait for the same delay level, or all until times of their own, or none. Nothing below
        `first_unanswered` is ever sent again. Returns the log offset of the first one, -1 when that part of the log is
        gone, and when this process made its record, in ms since 1970. Raises BrokerRejectedError when the broker
        rejects for good, and what the last try raised when the time is over.
        """
        self._lifecycle.require_running()
        if not 1 <= base_sequence <= SEQUENCE_MAX - len(messages):
            raise IllegalArgumentError(f"the number {base_sequence:,} is not from 1 to {SEQUENCE_MAX:,}")
        if not self._instance.routes.addresses(queue.broker_name):
            await self._instance.routes.refresh(queue.topic)
        born_ms = self._instance.clock.wall_ms()
        records = [self._record(queue, one, base_sequence + number, born_ms) for number, one in enumerate(messages)]
        request = broker_pb.SendRequest(
            batch=broker_pb.RecordBatch(
                topic=queue.topic,
                queue_id=queue.queue_id,
                count=len(records),
                records=b"".join(records),
                base_sequence=base_sequence,
                first_unanswered_sequence=first_unanswered,
            ),
            producer_id=self._id,
            producer_epoch=EPOCH,
        )
        result = await self._until_answered(queue.broker_name, request, timeout)
        return result.base_log_offset, born_ms

    async def stored_at(self, broker_name: str, log_offset: int) -> StoredMessage | None:
        """What a send was answered with; None when it is not there any more. Raises MQClientError."""
        self._lifecycle.require_running()
        answer = await self._instance.calls.to_master(
            broker_name, VIEW_MESSAGE, broker_pb.ViewMessageRequest(log_offset=log_offset), patience_s=REQUEST_S_MAX
        )
        if int(answer.code) != ResponseCode.SUCCESS:
            logger.info("broker %s has nothing at %d any more: %s", broker_name, log_offset, answer.remark)
            return None
        record = decode_record(answer.record)
        return StoredMessage(decode_properties(record.properties).get(UNIQ_KEY, ""), record.born_timestamp_ms)

    # ------------------------------------------------------------------------------------------------------ inside

    def _record(self, queue: MessageQueue, one: SequencedMessage, sequence: int, born_ms: int) -> bytes:
        return encode_record(
            topic=one.topic,
            body=one.body,
            properties=(
                f"{UNIQ_KEY}\x01{one.unique_id}\x02{one.properties}{self._property_start}{sequence}\x02".encode()
            ),
            queue_id=queue.queue_id,
            born_timestamp_ms=born_ms,
            born_ip=self._ip,
            flag=one.message.flag,
            sys_flag=one.sys_flag,
        )

    async def _until_answered(
        self, broker_name: str, request: broker_pb.SendRequest, timeout_s: float
    ) -> broker_pb.BatchResult:
        """The answer of the broker's current master."""
        clock = self._instance.clock
        until, pause_s = clock.monotonic() + timeout_s, PAUSE_MIN_S
        while True:
            error: MQClientError
            left_s = until - clock.monotonic()
            try:
                answer = await self._instance.calls.to_master(broker_name, SEND, request, patience_s=left_s)
                result = answer.result
                if (
                    result.code in STATUS_OF_CODE
                ):  # stored; less safely than wished perhaps, and a repeat changes nothing
                    return result
                error = broker_answer_error(result.code, result.remark, broker_name)
            except MQClientError as caught:
                error = caught
            if isinstance(error, BrokerUnavailableError) and error.code == ResponseCode.TOPIC_NOT_EXIST:
                # The topic lacks the queue by now, and what is numbered for it can go to no other one.
                raise BrokerRejectedError(error.code, error.remark, error.broker)
            if not isinstance(error, (RetryableError, OutcomeUnknownError)):
                raise error
            left_s = until - clock.monotonic()
            if left_s <= TRIES_END_EARLY_S:
                raise error
            logger.info("numbers from %d on are sent again to %s: %s", request.batch.base_sequence, broker_name, error)
            await clock.sleep(min(pause_s, left_s))
            await self._instance.routes.refresh_brokers()
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

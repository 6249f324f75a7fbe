"""The producer: validates, chooses a queue, sends, tries elsewhere when that may help (MISSION P1, P4-P10, P13, P17).

Invariants: a send takes no longer than its timeout, over all its tries; a message that was refused for good is not
tried again; a shut-down producer has no send under way.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any, Self

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.background import wait_event
from mqclient.client_config import ClientConfig
from mqclient.client_instance import ClientInstance, acquire_instance
from mqclient.errors import (
    BrokerRejectedError,
    IllegalArgumentError,
    IllegalGroupError,
    IllegalStateError,
    MessageRejectedError,
    MQClientError,
    NotSentError,
    OutcomeUnknownError,
    RetryableError,
)
from mqclient.lifecycle import Lifecycle, LifecycleEvent
from mqclient.message import Message
from mqclient.message_queue import MessageQueue
from mqclient.producer.message_encoder import check_message, message_properties, topic_bytes
from mqclient.producer.queue_choice import MessageQueueSelector, RoundRobin
from mqclient.producer.send_result import STATUS_OF_CODE, SendResult
from mqproto.codes import ResponseCode
from mqproto.names import IllegalNameError, check_group
from mqproto.properties import PGROUP, TRAN_MSG
from mqproto.record import FLAG_TRANSACTION_PREPARED, encode_record, pack_ip
from osenv.clock import timeout as clock_timeout

logger = logging.getLogger("mqclient.producer")

SEND_TIMEOUT_S = 3.0  # MISSION P4
RETRY_TIMES_WHEN_SEND_FAILED = 2  # MISSION P5
# Before a try on the very broker that just failed: without a pause, all tries are gone before it can come back.
SAME_BROKER_PAUSES_S = (0.2, 1.5)
# MISSION P7: final for the one broker, but another may have what this one lacks.
RETRYABLE_ELSEWHERE = frozenset(
    {ResponseCode.NO_PERMISSION, ResponseCode.NO_BUYER_ID, ResponseCode.NOT_IN_CURRENT_UNIT}
)


class Producer:
    """Sends messages for one producer group. May be shared by any number of tasks of its event loop (P18)."""

    def __init__(
        self,
        group: str,
        url: str,
        *,
        client_config: ClientConfig | None = None,
        retry_times_when_send_failed: int = RETRY_TIMES_WHEN_SEND_FAILED,
    ) -> None:
        """`url` is `mq://host:port;host:port` with the name servers. Raises IllegalGroupError, IllegalArgumentError."""
        try:
            check_group(group)
        except IllegalNameError as error:
            raise IllegalGroupError(str(error)) from error
        if retry_times_when_send_failed < 0:
            raise IllegalArgumentError("retry_times_when_send_failed is below 0; 0 means one try")
        self.group = group
        self._url = url
        self._config = client_config or ClientConfig()
        self._tries = 1 + retry_times_when_send_failed
        self._lifecycle = Lifecycle(f"producer {group}")
        self._sending = 0
        self._idle = asyncio.Event()
        self._instance: ClientInstance
        self._round_robin: RoundRobin
        self._born_ip = 0

    async def start(self) -> None:
        """Join the client instance. Raises UnknownTransportError, IllegalStateError; needs no server to be there."""
        self._lifecycle.move(LifecycleEvent.START)
        instance = acquire_instance(self._url, self._config)
        self._assemble(instance)
        try:
            instance.register_producer(self.group, self)
        except IllegalStateError:
            await instance.release()
            raise
        self._lifecycle.move(LifecycleEvent.STARTED)

    async def shutdown(self, *, timeout_s: float = 10.0) -> None:
        """Take no more messages, wait until those under way have their results, and leave.

        After `timeout_s` of waiting, what is still under way is abandoned and its sends raise.
        """
        self._lifecycle.move(LifecycleEvent.SHUTDOWN)
        deadline = self._instance.clock.monotonic() + timeout_s
        if self._sending:
            self._idle.clear()
            if not await wait_event(self._instance.clock, self._idle, timeout_s):
                logger.warning("producer %s leaves with %d sends under way", self.group, self._sending)
        await self._finish(deadline)
        self._instance.unregister_producer(self.group)
        await self._instance.release()

    async def send(
        self,
        message: Message,
        *,
        timeout: float = SEND_TIMEOUT_S,  # noqa: ASYNC109 - the budget is shared by several tries
        selector: MessageQueueSelector | None = None,
        selector_argument: Any = None,
    ) -> SendResult:
        """Send `message` and return where it was stored, within `timeout` seconds over all tries.

        Two further tries go to another broker where there is one. A try that follows an unknown outcome (the connection
        broke after the message had left) can store the message twice; consumers have to expect that. With a `selector`
        the queue is its choice and there is one try (P13).

        Raises MessageRejectedError for a message that breaks a rule, BrokerRejectedError when the broker refused it for
        good, a RetryableError when it is not stored, and an OutcomeUnknownError when it may be.
        """
        self._check_send(message, timeout)
        self._sending += 1
        try:
            return await self._send(message, timeout, selector, selector_argument)
        finally:
            self._sent()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lifecycle.running:
            await self.shutdown()

    # -------------------------------------------------------------------------------- what the client instance asks

    def check_transaction(self, broker_name: str, check: broker_pb.CheckTransaction) -> None:
        """Nobody here can answer; the broker asks another member of the group when its next check is due."""
        logger.warning(
            "producer %s has no transaction listener and cannot answer broker %s for %s; another member will be asked",
            self.group,
            broker_name,
            check.transaction_id,
        )

    # ---------------------------------------------------------------------------------------------------- inside

    def _assemble(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._round_robin = RoundRobin(instance.rng)
        self._born_ip = pack_ip(instance.local_ip)

    async def _finish(self, deadline: float) -> None:
        """What a kind of producer does after its last send, before it leaves; until `deadline` (monotonic)."""

    def _check_send(self, message: Message, timeout_s: float) -> None:
        self._lifecycle.require_running()
        check_message(message)
        if not timeout_s > 0:
            raise IllegalArgumentError(f"the timeout is {timeout_s!r}; it has to be above 0 seconds")

    def _sent(self) -> None:
        """One send less is under way."""
        self._sending -= 1
        if not self._sending:
            self._idle.set()

    async def _send(
        self,
        message: Message,
        timeout_s: float,
        selector: MessageQueueSelector | None = None,
        selector_argument: Any = None,
        *,
        half: bool = False,
    ) -> SendResult:
        instance, topic = self._instance, message.topic
        deadline = instance.clock.monotonic() + timeout_s
        born_timestamp_ms = instance.clock.wall_ms()
        unique_id, properties = self._identify(message, born_timestamp_ms, half)
        tries = 1 if selector is not None else self._tries
        failed_broker: str | None = None
        unknown: OutcomeUnknownError | None = None
        for retry in range(tries):
            queue: MessageQueue | None = None
            try:
                queues = instance.routes.known_publish_queues(topic) or await self._fetch_queues(topic, deadline)
                if selector is not None:
                    queue = _select(selector, queues, message, selector_argument)
                else:
                    queue = self._round_robin.choose(topic, queues, failed_broker)
                if queue.broker_name == failed_broker:
                    await self._pause_before_same_broker(topic, retry, deadline)
                connection = instance.connection(queue.broker_name)
                record = encode_record(
                    topic=topic_bytes(topic),
                    body=message.body,
                    properties=properties,
                    queue_id=queue.queue_id,
                    born_timestamp_ms=born_timestamp_ms,
                    born_ip=self._born_ip,
                    flag=message.flag,
                    sys_flag=FLAG_TRANSACTION_PREPARED if half else 0,
                )
                code, queue_offset, log_offset = await connection.produce.submit(
                    queue, record, deadline, alone=half or message.delay_level > 0
                )
                return SendResult(STATUS_OF_CODE[code], unique_id, queue, queue_offset, log_offset, connection.address)
            except MQClientError as error:
                if isinstance(error, OutcomeUnknownError):
                    unknown = error
                if queue is None or retry + 1 == tries or not self._may_retry(error, deadline):
                    if unknown is None or unknown is error:
                        raise
                    raise unknown from error  # what an earlier try left open is the truth about the whole send
                logger.info("%s is tried again after: %s", unique_id, error)
                failed_broker = queue.broker_name
                if half:  # the half that this try may have left behind must not end as the next one does
                    unique_id, properties = self._identify(message, born_timestamp_ms, half)
        raise AssertionError("every try of the loop above returns, raises or is followed by another")

    def _identify(self, message: Message, born_timestamp_ms: int, half: bool) -> tuple[str, bytes]:
        """A new unique id, and the properties with it."""
        unique_id = self._instance.unique_ids.next(born_timestamp_ms)
        queue_own = {TRAN_MSG: "true", PGROUP: self.group} if half else {}
        return unique_id, message_properties(message, unique_id, queue_own)

    def _may_retry(self, error: MQClientError, deadline: float) -> bool:
        if not self._lifecycle.running or self._instance.clock.monotonic() >= deadline:
            return False
        if isinstance(error, BrokerRejectedError):
            return error.code in RETRYABLE_ELSEWHERE
        return isinstance(error, (RetryableError, OutcomeUnknownError))

    async def _pause_before_same_broker(self, topic: str, retry: int, deadline: float) -> None:
        clock = self._instance.clock
        pause_s = SAME_BROKER_PAUSES_S[min(retry, len(SAME_BROKER_PAUSES_S)) - 1]
        await clock.sleep(min(pause_s, max(0.0, deadline - clock.monotonic())))
        try:
            async with clock_timeout(clock, deadline - clock.monotonic()):
                await self._instance.routes.refresh(topic)
        except (MQClientError, TimeoutError) as error:
            logger.info("the route of %s could not be refreshed before a retry: %s", topic, error)
        if clock.monotonic() >= deadline:
            raise NotSentError(f"the time ran out before {topic!r} could be tried again")

    async def _fetch_queues(self, topic: str, deadline: float) -> tuple[MessageQueue, ...]:
        clock = self._instance.clock
        try:
            async with clock_timeout(clock, deadline - clock.monotonic()):
                return await self._instance.routes.publish_queues(topic)
        except TimeoutError:
            raise NotSentError(f"the time ran out before a name server told the route of {topic!r}") from None


def _select(
    selector: MessageQueueSelector, queues: tuple[MessageQueue, ...], message: Message, argument: Any
) -> MessageQueue:
    chosen = selector(queues, message, argument)
    if chosen not in queues:
        raise MessageRejectedError(f"the selector returned {chosen!r}, which is not one of the queues it was given")
    return chosen

"""The message-handling layer of a producer: compression, the choice of a queue, tries, and the hand-over to the stream.

Invariants: a send takes no longer than its deadline, over all its tries; what was rejected for good is not tried again;
one table says what is tried again (`may_retry`), and each try is observed if a hook or fault tolerance needs it.
Messages for queues that their callers have chosen leave in the order in which they were sent, also when a thread needs
longer to compress one of them than the next.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf
from typing import Any

from mqclient.client_instance import ClientInstance
from mqclient.config import ProducerConfig
from mqclient.connection.frames import SendOptions, Stored
from mqclient.errors import (
    BrokerUnavailableError,
    IllegalArgumentError,
    MessageRejectedError,
    MQClientError,
    NoRouteError,
    NotSentError,
)
from mqclient.lifecycle import WorkerThreads
from mqclient.message import UNIQUE_ID_CHARACTERS, ZLIB_FLAGS, Message, MessageQueue, SendResult, SendStatus, compress
from mqclient.observed.operations import tried_again
from mqclient.producer.attempts import (
    AttemptHistory,
    AttemptObserver,
    CommunicationMode,
    Hooks,
    LatencyFaultTolerance,
    RetryPolicy,
    SendMessageContext,
    SendMessageHook,
    may_retry,
    message_type,
)
from mqclient.producer.prepared import (
    PreparedBatch,
    PreparedMessage,
    check_message,
    message_properties,
    record_bytes_max,
)
from mqproto.codes import ResponseCode
from mqproto.properties import java_string_hash
from osenv import Rng, SystemRng
from osenv.clock import timeout as clock_timeout

logger = logging.getLogger("mqclient.sender")

# Picks one of the queues for a message and the argument that `send` was given; a queue that is gone is an error.
MessageQueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]

# The same for one message, with everything else known.
FixedChoice = Callable[[Sequence[MessageQueue]], MessageQueue]

IN_THREAD_OVER_BYTES = 256 * 1024  # some milliseconds of work, for which other tasks would have to wait

BATCH_BYTES = 1024 * 1024
BATCH_BYTES_MAX = 4 * 1024 * 1024
_ANY_UNIQUE_ID = "0" * UNIQUE_ID_CHARACTERS

# Before a try on the very broker that just failed: without a pause, all tries are gone before it can recover.
SAME_BROKER_PAUSES_S = (0.2, 1.5)

# Between two questions for a route while its brokers have replicas and no master: one of them is about to become it.
NO_MASTER_PAUSES_S = (0.1, 0.2, 0.4)

_terms = lru_cache(SendOptions)  # equal terms are one object


class Sender:
    """Sends for the producer `group`, and tries again as long as `is_running` says so."""

    def __init__(
        self, group: str, instance: ClientInstance, config: ProducerConfig, is_running: Callable[[], bool]
    ) -> None:
        self._hooks = Hooks()
        self._group = group
        self._instance = instance
        self._routes = instance.routes
        self._in_ids = instance.name_servers.address_in_ids
        self._clock = instance.clock
        self._config = config
        self._is_running = is_running
        self.sync_tries = RetryPolicy(CommunicationMode.SYNC, 1 + config.retry_times_when_send_failed)
        self.async_tries = RetryPolicy(CommunicationMode.ASYNC, 1 + config.retry_times_when_send_async_failed)
        self._fault_tolerance = LatencyFaultTolerance(instance.clock) if config.send_latency_fault_enable else None
        self._choice = QueueChoice(instance.rng, self._fault_tolerance)
        self._is_watched = self._fault_tolerance is not None
        self._try_timeout_s = config.send_msg_max_timeout_per_request_s or inf
        self._compressor = BodyCompressor(config.compress_msg_body_over_howmuch, config.compress_level)

    def close(self) -> None:
        """Release the sender's own resources."""
        self._compressor.close()

    def register_hook(self, hook: SendMessageHook) -> None:
        self._hooks.register(hook)
        self._is_watched = True

    async def deliver(
        self,
        outgoing: PreparedMessage | PreparedBatch,
        deadline: float,
        tries: RetryPolicy,
        fixed: FixedChoice | None = None,
    ) -> SendResult:
        """Try until it is stored: on queues in turn, or once on the `fixed` one. Ends by `deadline` (monotonic).

        A try on a queue that the topic does not have any more counts for nothing: the next one has the route of now.
        """
        mode, tries_max = tries
        ordered = fixed is not None
        if ordered or outgoing.compressible_bytes >= self._compressor.from_bytes:
            await self._compressor.compress(outgoing, ordered=ordered)
        if ordered:
            tries_max = 1
        past: AttemptHistory | None = None
        number = 0
        while True:
            number += 1
            queue: MessageQueue | None = None
            try:
                queues: Sequence[MessageQueue] = self._routes.known_publish_queues(outgoing.topic) or ()
                if not queues:
                    queues = await self._fetch_queues(outgoing.topic, deadline)
                if fixed is None and past is not None:
                    outgoing.begin_again()
                    queues = past.still_open(queues)
                avoided = past.last_broker if past is not None else None
                queue = fixed(queues) if fixed is not None else self._choice.choose(outgoing.topic, queues, avoided)
                if fixed is None and past is not None and queue.broker_name == past.last_broker:
                    await self._pause_before_same_broker(outgoing.topic, number, deadline)
                failover = number < tries_max and queues[0].broker_name != queues[-1].broker_name
                result = await self._try(outgoing, queue, self._terms(outgoing, ordered, failover), deadline, mode)
            except MQClientError as error:
                if await self._is_removed(queue, error, fixed, deadline):
                    number -= 1
                    continue
                past = past or AttemptHistory()
                past.failed(queue, error)
                if queue is None or number == tries_max or not self._may_go_on(error, mode, deadline):
                    return past.end(error)
                logger.info("retrying %s: %s", outgoing.unique_id, error)
                tried_again(queue, error)
            else:
                if result.send_status is SendStatus.SEND_OK or not (failover and self._wants_better(mode)):
                    return result
                past = past or AttemptHistory()
                past.stored_less_safely(result)

    async def hand_over(
        self, outgoing: PreparedMessage, deadline: float, fixed: FixedChoice | None = None
    ) -> asyncio.Future[Stored]:
        """Hand a one-way message to its stream, once. The future says when it is no longer under way."""
        ordered = fixed is not None
        if ordered or outgoing.compressible_bytes >= self._compressor.from_bytes:
            await self._compressor.compress(outgoing, ordered=ordered)
        queues: Sequence[MessageQueue] = self._routes.known_publish_queues(outgoing.topic) or ()
        if not queues:
            queues = await self._fetch_queues(outgoing.topic, deadline)
        queue = fixed(queues) if fixed is not None else self._choice.choose(outgoing.topic, queues)
        stream = self._instance.produce_stream(queue.broker_name)
        terms = self._terms(outgoing, ordered, failover=False)
        if not self._is_watched:
            return stream.submit(outgoing.pending(queue, stream.sequences, deadline, terms))
        watch = self._watch(outgoing, CommunicationMode.ONEWAY, queue, stream.address)
        future = stream.submit(outgoing.pending(queue, stream.sequences, deadline, terms))
        watch.handed_over(future)
        return future

    async def _try(
        self,
        outgoing: PreparedMessage | PreparedBatch,
        queue: MessageQueue,
        terms: SendOptions,
        deadline: float,
        mode: CommunicationMode,
    ) -> SendResult:
        stream = self._instance.produce_stream(queue.broker_name)
        if terms.failover_on_timeout:
            deadline = min(deadline, self._clock.monotonic() + self._try_timeout_s)
        if not self._is_watched:
            pending = outgoing.pending(queue, stream.sequences, deadline, terms)
            return outgoing.result(pending, await stream.submit(pending), self._in_ids(stream.address))
        watch = self._watch(outgoing, mode, queue, stream.address)
        try:
            pending = outgoing.pending(queue, stream.sequences, deadline, terms)
            result = outgoing.result(pending, await stream.submit(pending), self._in_ids(stream.address))
        except (MQClientError, asyncio.CancelledError) as error:
            watch.ended(error=error)
            raise
        watch.ended(result)
        return result

    def _terms(self, outgoing: PreparedMessage | PreparedBatch, ordered: bool, failover: bool) -> SendOptions:
        """How it travels. A try has a bound of its own only while another broker could take over."""
        return _terms(outgoing.own_batch, ordered, failover, failover and self._try_timeout_s < inf)

    def _watch(
        self, outgoing: PreparedMessage | PreparedBatch, mode: CommunicationMode, queue: MessageQueue, address: str
    ) -> AttemptObserver:
        context = SendMessageContext(
            producer_group=self._group,
            messages=outgoing.messages,
            unique_id=outgoing.unique_id,
            message_queue=queue,
            broker_address=address,
            born_host=self._instance.local_ip,
            communication_mode=mode,
            message_type=message_type(outgoing),
        )
        return AttemptObserver(context, self._hooks, self._fault_tolerance, self._clock)

    def _wants_better(self, mode: CommunicationMode) -> bool:
        """Whether a message that is stored less safely than wished is sent to another broker as well."""
        return self._config.retry_another_broker_when_not_store_ok and mode is CommunicationMode.SYNC

    def _may_go_on(self, error: MQClientError, mode: CommunicationMode, deadline: float) -> bool:
        return self._is_running() and self._clock.monotonic() < deadline and may_retry(error, mode)

    async def _is_removed(
        self, queue: MessageQueue | None, error: MQClientError, fixed: FixedChoice | None, deadline: float
    ) -> bool:
        """Whether the topic lacks the rejected queue by now, and the message has another one to go to."""
        if queue is None or not isinstance(error, BrokerUnavailableError) or error.code != ResponseCode.TOPIC_NOT_EXIST:
            return False
        try:
            async with clock_timeout(self._clock, deadline - self._clock.monotonic()):
                await self._routes.refresh(queue.topic)
            queues = self._routes.known_publish_queues(queue.topic) or ()
            return bool(queues) and queue not in queues and (fixed is None or fixed(queues) != queue)
        except (MQClientError, TimeoutError) as problem:
            logger.info("the route of %s could not be refreshed: %s", queue.topic, problem)
            return False

    async def _pause_before_same_broker(self, topic: str, number: int, deadline: float) -> None:
        clock = self._clock
        pause_s = SAME_BROKER_PAUSES_S[min(number - 1, len(SAME_BROKER_PAUSES_S)) - 1]
        await clock.sleep(min(pause_s, max(0.0, deadline - clock.monotonic())))
        try:
            async with clock_timeout(clock, deadline - clock.monotonic()):
                await self._routes.refresh(topic)
        except (MQClientError, TimeoutError) as error:
            logger.info("the route of %s could not be refreshed before a retry: %s", topic, error)
        if clock.monotonic() >= deadline:
            raise NotSentError(f"the time ran out before {topic!r} could be tried again")

    async def _fetch_queues(self, topic: str, deadline: float) -> Sequence[MessageQueue]:
        """The topic's queues, as soon as one of its brokers has a master. Raises NoRouteError, NotSentError."""
        pauses_s = iter(NO_MASTER_PAUSES_S)
        no_master: NoRouteError | None = None
        try:
            async with clock_timeout(self._clock, deadline - self._clock.monotonic()):
                while True:
                    try:
                        return await self._routes.publish_queues(topic)
                    except NoRouteError as error:
                        if not self._routes.waits_for_master(topic):
                            raise
                        no_master = error
                    await self._clock.sleep(next(pauses_s, NO_MASTER_PAUSES_S[-1]))
        except TimeoutError:
            if no_master is not None:
                raise no_master from None
            raise NotSentError(f"timed out while waiting for the route of {topic!r}") from None


class QueueChoice:
    """One index per topic, starting anywhere, so that many producers do not all begin with the same queue.

    With `fault_tolerance`, brokers that are better left alone are passed over.
    """

    def __init__(self, rng: Rng, fault_tolerance: LatencyFaultTolerance | None = None) -> None:
        self._rng = rng
        self._fault_tolerance = fault_tolerance
        self._indexes: dict[str, int] = {}

    def choose(self, topic: str, queues: Sequence[MessageQueue], failed_broker: str | None = None) -> MessageQueue:
        """The next of `queues`: never one of `failed_broker` while another broker has one."""
        index = self._indexes.get(topic)
        if index is None:
            index = self._rng.randrange(0, len(queues))
        if self._fault_tolerance is not None:
            index += self._steps_to_available(self._fault_tolerance, queues, index, failed_broker)
        elif failed_broker is not None:
            index += _steps(queues, index, lambda broker: broker != failed_broker) or 0
        self._indexes[topic] = index + 1
        return queues[index % len(queues)]

    def _steps_to_available(
        self, tolerance: LatencyFaultTolerance, queues: Sequence[MessageQueue], index: int, failed_broker: str | None
    ) -> int:
        """How far the chosen queue is from the one whose turn it is."""
        steps = _steps(queues, index, lambda broker: broker != failed_broker and tolerance.is_available(broker))
        if steps is None:
            steps = _steps(queues, index, tolerance.is_available)
        if steps is None and (least_bad := tolerance.pick_one_at_least()) is not None:
            steps = _steps(queues, index, lambda broker: broker == least_bad)
            if steps is None:  # it has no queue that can be written
                tolerance.remove(least_bad)
        return steps or 0


def _steps(queues: Sequence[MessageQueue], index: int, takes: Callable[[str], bool]) -> int | None:
    """How far it is from the queue at `index` to the next one whose broker `takes` messages."""
    count = len(queues)
    return next((step for step in range(count) if takes(queues[(index + step) % count].broker_name)), None)


def by_selector(selector: MessageQueueSelector, message: Message, argument: Any) -> FixedChoice:
    """The selector's choice. Raises MessageRejectedError when it fails, or returns no queue that it was given."""

    def choose(queues: Sequence[MessageQueue]) -> MessageQueue:
        try:
            chosen = selector(queues, message, argument)
        except Exception as error:
            raise MessageRejectedError(f"the selector failed: {error!r}") from error
        if chosen not in queues:
            raise MessageRejectedError(f"the selector returned {chosen!r}, which is not one of the queues it was given")
        return chosen

    return choose


def always(queue: MessageQueue) -> FixedChoice:
    """This queue, whatever the route says of it."""
    return lambda _: queue


class SelectMessageQueueByHash:
    """The queue of the argument's hash, the same that a Java producer chooses for the same text.

    The hash is the one of Java's String, of `str(argument)`; its remainder counts without its sign.
    """

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
        del message
        return queues[abs(java_string_hash(str(argument))) % len(queues)]


class SelectMessageQueueByRandom:
    """Any queue."""

    def __init__(self, rng: Rng | None = None) -> None:
        self._rng = rng or SystemRng()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
        del message, argument
        return self._rng.choice(queues)


class MessageBatchSplitter:
    """The messages, in their order, as lists that `Producer.send_batch` takes.

    for batch in MessageBatchSplitter(messages):
        await producer.send_batch(batch)

    Raises IllegalArgumentError for a size that no batch may have, and MessageRejectedError when it meets a message that
    breaks a rule or is alone larger than `max_bytes`; the lists before it have been given out then.
    """

    def __init__(self, messages: Iterable[Message], max_bytes: int = BATCH_BYTES) -> None:
        if not 0 < max_bytes <= BATCH_BYTES_MAX:
            raise IllegalArgumentError(f"max_bytes is {max_bytes!r}; it has to be 1 to {BATCH_BYTES_MAX:,}")
        self._messages = messages
        self._max_bytes = max_bytes

    def __iter__(self) -> Iterator[list[Message]]:
        batch: list[Message] = []
        left = self._max_bytes
        for number, message in enumerate(self._messages):
            check_message(message)
            size = record_bytes_max(message, message_properties(message, _ANY_UNIQUE_ID))
            if size > self._max_bytes:
                raise MessageRejectedError(
                    f"message {number} takes {size:,} bytes; a batch may have {self._max_bytes:,}, so send it alone"
                )
            if size > left:
                yield batch
                batch, left = [], self._max_bytes
            batch.append(message)
            left -= size
        if batch:
            yield batch


class BodyCompressor:
    """Compresses bodies of `from_bytes` or more, none if that is None."""

    def __init__(self, from_bytes: int | None, level: int) -> None:
        self.from_bytes = sys.maxsize if from_bytes is None else from_bytes
        self._level = level
        self._in_order = asyncio.Lock()
        self._threads = WorkerThreads("mqclient-compression", 1)

    async def compress(self, outgoing: PreparedMessage | PreparedBatch, *, ordered: bool) -> None:
        """Compress the body if it is large enough and that pays, and wait for earlier ones if order matters."""
        if not ordered:
            await self._compress(outgoing)
            return
        async with self._in_order:  # fair: first come, first served
            await self._compress(outgoing)

    def close(self) -> None:
        self._threads.close()

    async def _compress(self, outgoing: PreparedMessage | PreparedBatch) -> None:
        if isinstance(outgoing, PreparedBatch) or outgoing.compressible_bytes < self.from_bytes:
            return
        if outgoing.compressible_bytes > IN_THREAD_OVER_BYTES:
            compressed = await self._threads.run(compress, outgoing.body, self._level)
        else:
            compressed = compress(outgoing.body, self._level)
        if compressed is not None:
            outgoing.body = compressed
            outgoing.sys_flag |= ZLIB_FLAGS

"""The producer of messages.

Invariants: a message that breaks a rule is rejected before anything happens; a send takes no longer than its timeout,
over all its tries; a shut-down producer has no send under way. Every asynchronous send that was accepted calls exactly
one method of its callback, once, also when the producer is shut down. What is under way where no caller waits for each
send, callbacks included, never exceeds the limits (RocketMQ's semaphores for such sends).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance, acquire_instance
from mqclient.config import ClientConfig, ProducerConfig, legal_group
from mqclient.connection.frames import Stored
from mqclient.errors import (
    ConnectionLostError,
    IllegalArgumentError,
    IllegalStateError,
    MessageRejectedError,
    TooManyRequestsError,
)
from mqclient.lifecycle import BackgroundTasks, Lifecycle, LifecycleEvent, Service, WorkerThreads, wait_event
from mqclient.message import BatchSendResult, Message, MessageQueue, SendResult
from mqclient.observed.operations import observed_send, traced_recall
from mqclient.producer.attempts import SendMessageHook
from mqclient.producer.prepared import Origin, PreparedBatch, PreparedMessage
from mqclient.producer.sender import FixedChoice, MessageQueueSelector, Sender, always, by_selector
from mqclient.recall import RecallResult, recall, reschedule
from mqproto.record import pack_ip
from osenv import Clock
from telemetry import is_observing, is_tracing

logger = logging.getLogger("mqclient.producer")

T = TypeVar("T")


class SendCallback(Protocol):
    """Plain methods run in a thread of their own, so that a slow one delays neither the event loop nor other sends;
    coroutine methods run as tasks on the event loop. What they raise is logged.
    """

    def on_success(self, result: SendResult) -> Any:
        """The message is stored."""

    def on_exception(self, error: Exception) -> Any:
        """It is not, or the outcome is unknown: the error is what `Producer.send` would have raised."""


class Producer(Service):
    """Sends messages for one producer group. May be shared by any number of tasks of its event loop (mechanism P18).

    `send` awaits the result, `send_async` gives it to a callback, `send_oneway` asks for none; `send_batch` stores
    several messages together. All raise MessageRejectedError for a message that breaks a rule
    (docs/reference/producer-errors.md) and IllegalStateError unless the producer runs.
    `recall` and `reschedule` are for messages that wait.
    """

    def __init__(
        self,
        group: str,
        url: str,
        *,
        client_config: ClientConfig | None = None,
        producer_config: ProducerConfig | None = None,
    ) -> None:
        """`url` is `mq://host:port;host:port` with the name servers. Raises IllegalGroupError."""
        self.group = legal_group(group)
        self._url = url
        self._client_config = client_config or ClientConfig()
        self._config = producer_config or ProducerConfig()
        self._lifecycle = Lifecycle(f"producer {group}")
        self._hooks: list[SendMessageHook] = []
        self._sending = 0
        self._idle = asyncio.Event()
        self._instance: ClientInstance
        self._origin: Origin
        self._sender: Sender
        self._oneways: InFlightLimit
        self._callbacks: CallbackSends

    async def start(self) -> None:
        """Join the client instance. Raises UnknownTransportError, IllegalStateError; needs no server to be there."""
        self._lifecycle.move(LifecycleEvent.START)
        instance = acquire_instance(self._url, self._client_config)
        self._assemble(instance)
        try:
            instance.register_producer(self.group, self)
        except IllegalStateError:
            await instance.release()
            raise
        self._lifecycle.move(LifecycleEvent.STARTED)

    async def shutdown(self, *, timeout_s: float = 10.0) -> None:
        """Take no more messages, wait until those under way have their results, and leave.

        All of it takes `timeout_s` at most, whatever hangs: what is still under way then is abandoned, its sends raise,
        and its callbacks get an error.
        """
        self._lifecycle.move(LifecycleEvent.SHUTDOWN)
        unregister = partial(self._instance.unregister_producer, self.group)
        await self._instance.leave(timeout_s, finish=self._finish_sends, unregister=unregister)

    def register_send_message_hook(self, hook: SendMessageHook) -> None:
        """Register a hook around each try (mechanism P19)."""
        self._hooks.append(hook)
        if self._lifecycle.running:
            self._sender.register_hook(hook)

    async def send(
        self,
        message: Message,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the budget is shared by several tries
        selector: MessageQueueSelector | None = None,
        selector_argument: Any = None,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Send `message` and return where it was stored, within `timeout` seconds over all tries.

        Two further tries go to another broker where there is one. A message whose answer was lost with its connection
        is sent again to the same broker, or to a replica of it that has become the master, and is recognised there;
        only when that broker is gone it goes to another one, and then it can be stored on both: consumers have to
        expect that. While all masters of the topic are away and a replica is there, the message waits for a new master.
        With a `selector` or a `queue` there is one try (mechanism P13), and messages of the queue keep the order in
        which they were sent.

        Raises BrokerRejectedError when the broker rejected it for good, a RetryableError when it is not stored, and an
        OutcomeUnknownError when it may be.
        """
        deadline = self._deadline(timeout)
        outgoing = PreparedMessage(message, self._origin)
        fixed = None
        if selector is not None or queue is not None:
            fixed = _fixed_choice(message, selector, selector_argument, queue)
        delivery = self._observed(outgoing, self._sender.deliver(outgoing, deadline, self._sender.sync_tries, fixed))
        self._sending += 1
        try:
            return await delivery
        finally:
            self._sent()

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        queue: MessageQueue | None = None,
    ) -> BatchSendResult:
        """Store `messages` together: all of them, one behind the other in one queue, or none (mechanism P15).

        They have to have one topic and one `wait_store_msg_ok`, and no delay; MessageBatchSplitter cuts what is larger
        than `max_message_size`. Otherwise as `send`.
        """
        deadline = self._deadline(timeout)
        outgoing = PreparedBatch(messages, self._origin)
        fixed = _fixed_choice(messages[0], None, None, queue) if queue is not None else None
        delivery = self._observed(outgoing, self._sender.deliver(outgoing, deadline, self._sender.sync_tries, fixed))
        self._sending += 1
        try:
            result = await delivery
        finally:
            self._sent()
        return cast("BatchSendResult", result)  # what PreparedBatch makes

    def send_async(
        self,
        message: Message,
        callback: SendCallback,
        *,
        timeout: float | None = None,
        selector: MessageQueueSelector | None = None,
        selector_argument: Any = None,
        queue: MessageQueue | None = None,
    ) -> None:
        """Return at once; `callback` hears of the result within `timeout` seconds, from now on, over all tries.

        It is called once for every message that was accepted here. It is tried again where its broker gave no answer,
        and not after an answer (mechanisms P6, P8). Raises TooManyRequestsError when too many are under way.
        """
        deadline = self._deadline(timeout)
        outgoing = PreparedMessage(message, self._origin)
        fixed = _fixed_choice(message, selector, selector_argument, queue)

        def send() -> Coroutine[Any, Any, SendResult]:
            return self._observed(outgoing, self._sender.deliver(outgoing, deadline, self._sender.async_tries, fixed))

        self._callbacks.start(send, len(message.body), callback)

    async def send_oneway(
        self,
        message: Message,
        *,
        selector: MessageQueueSelector | None = None,
        selector_argument: Any = None,
        queue: MessageQueue | None = None,
    ) -> None:
        """Return as soon as the message is handed to its broker's stream; whether it is stored stays unknown.

        Mechanism P3.

        It is not tried elsewhere. When too many are under way it waits for some of them to end, and raises
        TooManyRequestsError after `send_msg_timeout_s`. Raises a RetryableError when there is no way to a broker.
        """
        deadline = self._deadline(None)
        outgoing = PreparedMessage(message, self._origin)
        fixed = _fixed_choice(message, selector, selector_argument, queue)
        size = len(message.body)
        await self._oneways.acquire(size, deadline)
        handing_over = self._observed(outgoing, self._sender.hand_over(outgoing, deadline, fixed))
        try:
            handed_over = await handing_over
        except BaseException:
            self._oneways.give_back(size)
            raise
        handed_over.add_done_callback(partial(self._oneway_ended, outgoing.unique_id, size))

    async def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that a send can name as its `queue`, sorted; of a topic that is still to be made, those of then.

        From the route that the client has, at most `poll_name_server_interval_s` old. Raises NoRouteError when no
        broker has the topic and none would create it, or no name server answers; IllegalStateError unless running.
        """
        self._lifecycle.require_running()
        return list(await self._instance.routes.publish_queues(topic))

    async def recall(self, topic: str, *, key: str | None = None, message_id: str | None = None) -> RecallResult:
        """Recall waiting messages: those of the topic with this key, or the one with this `message_id`.

        The result says of each what became of it, and that holds for good: what is REMOVED is never delivered. All
        masters that the topic's route names are asked, each within the ClientConfig's `request_timeout_s`. Asking again
        is safe at any time, also after an error.

        Of a topic that no broker has, nothing waits: UNKNOWN, if every name server says so.

        Raises IllegalArgumentError; NoRouteError when it is unknown which brokers to ask. When a broker gives no
        answer, nothing is claimed: OutcomeUnknownError if it may have done what was asked, a RejectedError if it
        rejects for good, a RetryableError otherwise; the sentence tells what other brokers have answered.
        """
        self._lifecycle.require_running()
        self._sending += 1
        asking = recall(self._instance, topic, key=key, message_id=message_id)
        if is_tracing():
            asking = traced_recall("recall", topic, key or message_id, asking)
        try:
            return await asking
        finally:
            self._sent()

    async def reschedule(
        self,
        topic: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        delay_ms: int | None = None,
        deliver_at: datetime | None = None,
    ) -> RecallResult:
        """Reschedule waiting messages to `deliver_at`, or to `delay_ms` from now: sooner or later, as in Message.

        What was removed is not brought back, and what was delivered stays delivered. Otherwise as `recall`.
        """
        self._lifecycle.require_running()
        self._sending += 1
        asking = reschedule(
            self._instance, topic, key=key, message_id=message_id, delay_ms=delay_ms, deliver_at=deliver_at
        )
        if is_tracing():
            asking = traced_recall("reschedule", topic, key or message_id, asking)
        try:
            return await asking
        finally:
            self._sent()

    # -------------------------------------------------------------------------------- what the client instance asks

    @property
    def in_flight(self) -> int:
        """Calls without a result, and callbacks that have not ended."""
        return self._sending + self._oneways.count + self._callbacks.count

    def check_transaction(self, broker_name: str, check: broker_pb.CheckTransaction) -> None:
        """This producer cannot answer; the broker asks another member of the group when its next check is due."""
        logger.warning(
            "producer %s has no transaction listener and cannot answer broker %s for %s; another member will be asked",
            self.group,
            broker_name,
            check.transaction_id,
        )

    # ---------------------------------------------------------------------------------------------------- inside

    def _assemble(self, instance: ClientInstance) -> None:
        config, clock = self._config, instance.clock
        self._instance = instance
        self._origin = Origin(
            self.group, instance.unique_ids, clock, pack_ip(instance.local_ip), config.max_message_size
        )
        self._sender = Sender(self.group, instance, config, lambda: self._lifecycle.running)
        for hook in self._hooks:
            self._sender.register_hook(hook)
        bytes_max = config.back_pressure_for_async_send_size
        self._oneways = InFlightLimit("one-way", config.client_oneway_semaphore_value, bytes_max, clock)
        asynchronous = InFlightLimit("asynchronous", config.client_async_semaphore_value, bytes_max, clock)
        self._callbacks = CallbackSends(asynchronous, config.client_callback_executor_threads, clock)

    def _observed(
        self, outgoing: PreparedMessage | PreparedBatch, sending: Coroutine[Any, Any, T]
    ) -> Coroutine[Any, Any, T]:
        """`sending`, with a span and its measurements while they are on."""
        return observed_send(self.group, outgoing, sending, self._instance.clock) if is_observing() else sending

    async def _finish_sends(self, until: float) -> None:
        clock = self._instance.clock
        if self._sending:
            self._idle.clear()
            if not await wait_event(clock, self._idle, until - clock.monotonic()):
                logger.warning("producer %s is closed with %d sends in flight", self.group, self._sending)
        if not await self._oneways.wait_until_idle(until):
            logger.warning("producer %s is closed with %d one-way messages in flight", self.group, self._oneways.count)
        await self._callbacks.close(until)
        await self._finish(until)
        self._sender.close()

    async def _finish(self, deadline: float) -> None:
        """What a kind of producer does after its last send, before it leaves; until `deadline` (monotonic)."""

    def _deadline(self, timeout_s: float | None) -> float:
        """When the send that begins now has to be over. Raises IllegalStateError, IllegalArgumentError."""
        self._lifecycle.require_running()
        if timeout_s is None:
            timeout_s = self._config.send_msg_timeout_s
        elif not timeout_s > 0:
            raise IllegalArgumentError(f"the timeout is {timeout_s!r}; it has to be above 0 seconds")
        return self._instance.clock.monotonic() + timeout_s

    def _sent(self) -> None:
        """A send has ended."""
        self._sending -= 1
        if not self._sending:
            self._idle.set()

    def _oneway_ended(self, unique_id: str, size: int, handed_over: asyncio.Future[Stored]) -> None:
        self._oneways.give_back(size)
        error = handed_over.exception()
        if error is not None:
            logger.info("the one-way message %s may be lost: %s", unique_id, error)


class CallbackSends:
    """The sends of one producer whose results go to callbacks."""

    def __init__(self, limit: InFlightLimit, threads_max: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._tasks = BackgroundTasks(clock)
        self._threads = WorkerThreads("mqclient-callback", threads_max)

    def start(self, send: Callable[[], Awaitable[SendResult]], size: int, callback: SendCallback) -> None:
        """Send, and call back. Raises TooManyRequestsError; then the callback is not called."""
        self._limit.take(size)
        task = self._tasks.start(self._send_and_call(send, callback), "mqclient async send", in_span=True)
        task.add_done_callback(lambda _: self._limit.give_back(size))

    @property
    def count(self) -> int:
        """How many have not ended, their callbacks included."""
        return self._tasks.count

    async def close(self, deadline: float) -> None:
        """Wait for all callbacks until `deadline` (monotonic); those of sends that go on then get an error."""
        left = await self._tasks.drain(deadline - self._clock.monotonic())
        if left:
            logger.warning("%d asynchronous sends, or their callbacks, did not end in time", left)
        await self._tasks.close()
        self._threads.close()

    async def _send_and_call(self, send: Callable[[], Awaitable[SendResult]], callback: SendCallback) -> None:
        error: Exception
        try:
            result = await send()
        except Exception as raised:
            error = raised
        except asyncio.CancelledError:  # by `close`, which still waits for the callback
            error = ConnectionLostError("the producer was shut down before the answer came")
        else:
            await self._call(callback.on_success, result)
            return
        await self._call(callback.on_exception, error)

    async def _call(self, method: Callable[[Any], Any], argument: SendResult | Exception) -> None:
        try:
            if inspect.iscoroutinefunction(method):
                await method(argument)
                return
            returned = await self._threads.run(method, argument)
            if inspect.isawaitable(returned):
                await returned
        except Exception:
            logger.exception("a send callback failed with %r", argument)


class InFlightLimit:
    """Counts sends of one `kind`, and the bytes of their bodies."""

    def __init__(self, kind: str, count_max: int, bytes_max: int, clock: Clock) -> None:
        self._kind = kind
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._clock = clock
        self._bytes = 0
        self._given_back = asyncio.Event()
        self.count = 0

    def take(self, size: int) -> None:
        """Count one more. Raises TooManyRequestsError."""
        if self.count >= self._count_max or self._bytes + size > self._bytes_max:
            raise TooManyRequestsError(
                f"{self.count:,} {self._kind} sends with {self._bytes:,} bytes are under way; at most "
                f"{self._count_max:,} with {self._bytes_max:,} bytes may be"
            )
        self.count += 1
        self._bytes += size

    async def acquire(self, size: int, deadline: float) -> None:
        """Count one more as soon as there is room. Raises TooManyRequestsError at `deadline` (monotonic)."""
        while True:
            try:
                self.take(size)
            except TooManyRequestsError:
                self._given_back.clear()
                if not await wait_event(self._clock, self._given_back, deadline - self._clock.monotonic()):
                    raise
            else:
                return

    def give_back(self, size: int) -> None:
        """One has ended."""
        self.count -= 1
        self._bytes -= size
        self._given_back.set()

    async def wait_until_idle(self, deadline: float) -> bool:
        """Whether nothing is under way any more, at `deadline` (monotonic) at the latest."""
        while self.count:
            self._given_back.clear()
            if not await wait_event(self._clock, self._given_back, deadline - self._clock.monotonic()):
                return False
        return True


def _fixed_choice(
    message: Message, selector: MessageQueueSelector | None, selector_argument: Any, queue: MessageQueue | None
) -> FixedChoice | None:
    """The caller's choice, None when it is left to the producer."""
    if queue is None:
        return by_selector(selector, message, selector_argument) if selector is not None else None
    if selector is not None:
        raise IllegalArgumentError("a selector and a queue are two choices; give one of them")
    if queue.topic != message.topic:
        raise MessageRejectedError(f"the message is for the topic {message.topic!r} and the queue is {queue}")
    return always(queue)

"""The application's side: a listener, its answers, and hooks around each of its calls.

Hooks are plain functions, called on the event loop: they must not block. A hook that raises is logged, and the
consumption goes on as if it were not there.

Invariant: whatever a listener does, `listen` raises nothing but the cancellation of its caller.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias

from mqclient.consumer.consume_service import ConsumerStats, ProcessQueue
from mqclient.lifecycle import WorkerThreads
from mqclient.message import MessageExt, MessageQueue
from mqclient.observed.operations import observed_processing
from osenv import Clock
from telemetry import is_observing

logger = logging.getLogger("mqclient.listener")

THREADS_TIMEOUT_S = 1.0  # how long a shutdown waits for the threads whose listeners it has stopped waiting for


class ConsumeStatus(Enum):
    """The answers of a concurrent listener; RocketMQ's names."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """The answers of an orderly listener; RocketMQ's names."""

    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


class ConsumeFromWhere(Enum):
    """Where a group begins in a queue for which it has never committed an offset."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(Enum):
    """Whether each message goes to one member of the group, or to every one (mechanisms C1, C2)."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """What a concurrent listener may set beside its answer; RocketMQ's names.

    `delay_level_when_next_consume`: when messages that are not consumed come again. 0: the broker decides, later with
    each try; 1 and above: a level of the broker's messageDelayLevel; -1: never, they become dead letters.

    `ack_index`, together with CONSUME_SUCCESS: the index of the last consumed message of the batch; the messages behind
    it come again. With -1 all of them come again, with None (the default) none.
    """

    message_queue: MessageQueue
    delay_level_when_next_consume: int = 0
    ack_index: int | None = None


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """What an ordered listener may set beside its answer.

    `suspend_current_queue_time_s`: how long the queue waits before its messages are tried again; None: as long as
    `ConsumerConfig.suspend_current_queue_time_s` says.
    """

    message_queue: MessageQueue
    suspend_current_queue_time_s: float | None = None


ConsumeContext: TypeAlias = ConsumeConcurrentlyContext | ConsumeOrderlyContext
# Anything but CONSUME_SUCCESS, an exception included, means that none of the messages is consumed. A plain function
# runs in a thread.
MessageListenerConcurrently: TypeAlias = (
    Callable[[list[MessageExt]], Awaitable[ConsumeStatus]]
    | Callable[[list[MessageExt]], ConsumeStatus]
    | Callable[[list[MessageExt], ConsumeConcurrentlyContext], Awaitable[ConsumeStatus]]
    | Callable[[list[MessageExt], ConsumeConcurrentlyContext], ConsumeStatus]
)
# Anything but SUCCESS, an exception included, means that none of the messages is consumed, and that the queue waits.
MessageListenerOrderly: TypeAlias = (
    Callable[[list[MessageExt]], Awaitable[ConsumeOrderlyStatus]]
    | Callable[[list[MessageExt]], ConsumeOrderlyStatus]
    | Callable[[list[MessageExt], ConsumeOrderlyContext], Awaitable[ConsumeOrderlyStatus]]
    | Callable[[list[MessageExt], ConsumeOrderlyContext], ConsumeOrderlyStatus]
)
Listener: TypeAlias = MessageListenerConcurrently | MessageListenerOrderly


def is_async(listener: Listener) -> bool:
    """Whether a call of it only makes something to await, and so belongs on the event loop."""
    called = listener if inspect.isroutine(listener) else getattr(listener, "__call__", listener)  # noqa: B004
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(called)


def takes_context(listener: Callable[..., Any]) -> bool:
    """Whether it has a second positional parameter without a default: the context of the call."""
    try:
        parameters = list(inspect.signature(listener).parameters.values())
    except (TypeError, ValueError):  # a builtin does not tell
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in parameters if one.kind in positional and one.default is inspect.Parameter.empty]
    return len(required) == 2


@dataclass(slots=True)
class ConsumeMessageContext:
    """One call of the listener. `props` are the hook's own: what it puts there before, it finds after.

    Afterwards `success` says whether the messages count as consumed, and `status` what the listener answered or raised.
    """

    consumer_group: str
    messages: Sequence[MessageExt]
    message_queue: MessageQueue
    props: dict[str, Any] = field(default_factory=dict)
    success: bool = False
    status: object = None


class ConsumeMessageHook(Protocol):
    """Registered with `PushConsumer.register_consume_message_hook`."""

    @property
    def hook_name(self) -> str:
        """Its name in the log."""

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """The listener is about to be called."""

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """The listener has answered, or raised."""


class ConsumeHooks:
    """All hooks of one consumer, in the order in which they were registered."""

    def __init__(self) -> None:
        self._hooks: list[ConsumeMessageHook] = []

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def register(self, hook: ConsumeMessageHook) -> None:
        self._hooks.append(hook)

    def before(self, context: ConsumeMessageContext) -> None:
        for hook in self._hooks:
            try:
                hook.consume_message_before(context)
            except Exception:
                logger.exception("the hook %s failed before %s was consumed", hook.hook_name, context.messages)

    def after(self, context: ConsumeMessageContext) -> None:
        for hook in self._hooks:
            try:
                hook.consume_message_after(context)
            except Exception:
                logger.exception("the hook %s failed after %s was consumed", hook.hook_name, context.messages)


class ListenerInvoker:
    """One listener, whose answer `success` means that the messages are consumed; any other one is a failure."""

    def __init__(
        self,
        clock: Clock,
        group: str,
        listener: Listener,
        success: ConsumeStatus | ConsumeOrderlyStatus,
        *,
        hooks: ConsumeHooks,
        stats: ConsumerStats,
    ) -> None:
        self._clock = clock
        self._group = group
        self._listener: Any = listener
        self._success = success
        self._takes_context = takes_context(listener)
        self._hooks = hooks
        self._stats = stats
        # The caller of `listen` bounds the number of threads.
        self._threads = None if is_async(listener) else WorkerThreads(f"mqclient consume {group}", sys.maxsize)

    async def listen(
        self, process_queue: ProcessQueue, messages: list[MessageExt], context: ConsumeContext
    ) -> tuple[bool, object]:
        """Whether the listener has consumed the messages of this queue, and what it answered or raised."""
        process_queue.last_consume_ms = self._clock.wall_ms()
        return await self._observed(process_queue.queue, messages, context)

    async def outcome(self, queue: MessageQueue, messages: list[MessageExt]) -> tuple[bool, object]:
        """Whether they are consumed, and what the listener answered or raised."""
        orderly = isinstance(self._success, ConsumeOrderlyStatus)
        context = ConsumeOrderlyContext(queue) if orderly else ConsumeConcurrentlyContext(queue)
        return await self._observed(queue, messages, context)

    def _observed(
        self, queue: MessageQueue, messages: list[MessageExt], context: ConsumeContext
    ) -> Coroutine[Any, Any, tuple[bool, object]]:
        processing = self._outcome(queue, messages, context)
        if is_observing():
            processing = observed_processing(self._group, queue, messages, processing, self._clock)
        return processing

    async def _outcome(
        self, queue: MessageQueue, messages: list[MessageExt], context: ConsumeContext
    ) -> tuple[bool, object]:
        hooked = None
        if self._hooks:
            hooked = ConsumeMessageContext(self._group, tuple(messages), queue)
            self._hooks.before(hooked)
        began = self._clock.monotonic()
        status: object
        try:
            status = await self._call((list(messages), context) if self._takes_context else (list(messages),))
        except Exception as error:
            logger.exception("the listener failed; %s will be consumed again", messages)
            status = error
        success = status is self._success
        if not isinstance(status, type(self._success) | Exception):
            expected = type(self._success).__name__
            logger.error("the listener returned %r, not a %s; %s are not consumed", status, expected, messages)
        now = self._clock.monotonic()
        self._stats.consumed(queue.topic, now, now - began, len(messages), success=success)
        if hooked is not None:
            hooked.success, hooked.status = success, status
            self._hooks.after(hooked)
        return success, status

    def close(self, timeout_s: float = THREADS_TIMEOUT_S) -> None:
        """End the threads; one whose listener hangs is left behind, and reported."""
        if self._threads is not None:
            self._threads.close(timeout_s)

    async def _call(self, arguments: tuple[Any, ...]) -> object:
        """What the listener answers, or raises; a cancellation of its own making is an error like any other."""
        try:
            if self._threads is None:
                status: object = await self._listener(*arguments)
            else:
                status = await self._threads.run(self._listener, *arguments)
                if isinstance(status, Awaitable):  # a plain function around an async one
                    status = await asyncio.ensure_future(status)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RuntimeError("the listener was cancelled from inside") from None
        return status

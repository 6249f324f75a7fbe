"""Calls the listener, wherever it runs, and says what came of it (MISSION C9, C12, L12).

Invariant: whatever a listener does, `listen` raises nothing but the cancellation of its caller.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Coroutine
from typing import Any

from mqclient.consumer.hooks import ConsumeHooks, ConsumeMessageContext
from mqclient.consumer.listener import (
    ConsumeConcurrentlyContext,
    ConsumeContext,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Listener,
    is_async,
    takes_context,
)
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.consumer.stats import ConsumerStats
from mqclient.lifecycle import WorkerThreads
from mqclient.message import MessageExt, MessageQueue
from mqclient.observed.processing import observed_processing
from osenv import Clock
from telemetry import is_observing

logger = logging.getLogger("mqclient.listening")

THREADS_TIMEOUT_S = 1.0  # how long a shutdown waits for the threads whose listeners it has stopped waiting for


class Listening:
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
        # Who calls `listen` bounds the number of threads.
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

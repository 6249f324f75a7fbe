"""Hands messages to the listener, several at a time (MISSION C9, C12).

Invariants: at most `concurrency` listeners run; a message leaves its process queue when the listener has consumed it or
the broker has taken it back, and in no other way; whatever a listener does, the worker goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from mqclient.background import BackgroundTasks, wait_event
from mqclient.consumer.listener import ConsumeStatus, MessageListenerConcurrently
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.errors import MQClientError
from mqclient.message_ext import MessageExt
from osenv import Clock

logger = logging.getLogger("mqclient.consume_service")

LOCAL_RETRY_S = 5.0  # after a send-back that failed; RocketMQ waits as long

SendBack = Callable[[MessageExt], Awaitable[None]]


class ConsumeMessageConcurrentlyService:
    """Workers around one listener. `send_back` gives one message back to its broker or raises MQClientError."""

    def __init__(
        self,
        clock: Clock,
        listener: MessageListenerConcurrently,
        send_back: SendBack,
        *,
        concurrency: int,
        batch_size_max: int,
    ) -> None:
        self._clock = clock
        self._listener = listener
        self._send_back = send_back
        self._concurrency = concurrency
        self._batch_size_max = batch_size_max
        self._tasks = BackgroundTasks(clock)
        self._batches: asyncio.Queue[tuple[ProcessQueue, list[MessageExt]]] = asyncio.Queue()
        self._running = 0
        self._idle = asyncio.Event()
        self._closing = False

    def start(self) -> None:
        for number in range(self._concurrency):
            self._tasks.start(self._work(), f"mqclient consume {number}")

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Queue the messages for consumption; `ProcessQueue.must_pause` is what bounds their number."""
        for at in range(0, len(messages), self._batch_size_max):
            self._batches.put_nowait((process_queue, list(messages[at : at + self._batch_size_max])))

    async def close(self, timeout_s: float) -> None:
        """Let the listeners that run finish within `timeout_s`; what has not begun stays unfinished."""
        self._closing = True
        if self._running:
            self._idle.clear()
            if not await wait_event(self._clock, self._idle, timeout_s):
                logger.warning("%d listeners did not finish in time; their messages will come again", self._running)
        await self._tasks.close()

    async def _work(self) -> None:
        while not self._closing:
            process_queue, messages = await self._batches.get()
            messages = [message for message in messages if process_queue.holds(message)]
            if not messages or self._closing:
                continue
            self._running += 1
            try:
                await self._consume(process_queue, messages)
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()

    async def _consume(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        if await self._listen(messages):
            process_queue.remove(messages)
            return
        failed = []
        for message in messages:
            if not process_queue.holds(message):
                continue  # handed over meanwhile: the new owner of the queue gets it again anyway
            try:
                await self._send_back(message)
            except MQClientError as error:
                logger.warning("%r stays here and is tried again in %.0f s: %s", message, LOCAL_RETRY_S, error)
                failed.append(message)
            else:
                process_queue.remove([message])
        if failed:
            self._tasks.start(self._submit_later(process_queue, failed), "mqclient local retry")

    async def _listen(self, messages: list[MessageExt]) -> bool:
        """Whether the listener has consumed the messages."""
        try:
            status: object = await self._listener(list(messages))
        except Exception:
            logger.exception("the listener failed; %s will be consumed again", messages)
            return False
        if status is ConsumeStatus.CONSUME_SUCCESS:
            return True
        if not isinstance(status, ConsumeStatus):
            logger.error("the listener returned %r, not a ConsumeStatus; %s will be consumed again", status, messages)
        return False

    async def _submit_later(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        await self._clock.sleep(LOCAL_RETRY_S)
        for message in messages:
            message.reconsume_times += 1
        self.submit(process_queue, messages)

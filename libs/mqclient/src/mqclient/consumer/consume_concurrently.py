"""Hands messages to the listener, several at a time and in any order (MISSION C9, C12).

Invariants: at most `concurrency` listeners run; a message leaves its process queue when the listener has consumed it or
the broker has taken it back, and in no other way; whatever a listener does, the worker goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from mqclient.background import BackgroundTasks
from mqclient.consumer.consume_service import Finish, GiveBack, Running
from mqclient.consumer.listening import Listening
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.errors import MQClientError
from mqclient.message_ext import MessageExt
from mqclient.message_queue import MessageQueue
from osenv import Clock

logger = logging.getLogger("mqclient.consume_service")

LOCAL_RETRY_S = 5.0  # after a send-back that failed; RocketMQ waits as long

_Batch = tuple[ProcessQueue, list[MessageExt]]


class ConsumeMessageConcurrentlyService:
    """Workers around one listener."""

    def __init__(
        self,
        clock: Clock,
        listening: Listening,
        give_back: GiveBack,
        finish: Finish,
        *,
        concurrency: int,
        batch_size_max: int,
    ) -> None:
        self._clock = clock
        self._listening = listening
        self._give_back = give_back
        self._finish = finish
        self._concurrency = concurrency
        self._batch_size_max = batch_size_max
        self._tasks = BackgroundTasks(clock)
        self._batches: asyncio.Queue[_Batch | None] = asyncio.Queue()  # None ends one worker
        self._running = Running(clock)
        self._closing = False

    def start(self) -> None:
        for number in range(self._concurrency):
            self._start_worker(number)

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        for at in range(0, len(messages), self._batch_size_max):
            self._batches.put_nowait((process_queue, list(messages[at : at + self._batch_size_max])))

    def set_concurrency(self, count: int) -> None:
        for number in range(self._concurrency, count):
            self._start_worker(number)
        for _ in range(count, self._concurrency):
            self._batches.put_nowait(None)
        self._concurrency = count

    async def finish(self, queue: MessageQueue) -> None:
        """Nothing to wait for: another member may consume the queue while a listener here is still at it."""

    async def close(self, timeout_s: float) -> bool:
        self._closing = True
        all_ended = await self._running.wait_idle(timeout_s)
        await self._tasks.close()
        return all_ended

    def _start_worker(self, number: int) -> None:
        self._tasks.start(self._work(), f"mqclient consume {number}")

    async def _work(self) -> None:
        while not self._closing and (batch := await self._batches.get()) is not None:
            process_queue, messages = batch
            messages = [message for message in messages if process_queue.holds(message)]
            if messages and not self._closing:
                with self._running:
                    await self._consume(process_queue, messages)

    async def _consume(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        if await self._listening.listen(process_queue, messages):
            self._finish(process_queue, messages)
            return
        failed = []
        for message in messages:
            if not process_queue.holds(message):
                continue  # handed over meanwhile: the new owner of the queue gets it again anyway
            try:
                await self._give_back(message)
            except MQClientError as error:
                logger.warning("%r stays here and is tried again in %.0f s: %s", message, LOCAL_RETRY_S, error)
                failed.append(message)
            else:
                self._finish(process_queue, [message])
        if failed:
            self._tasks.start(self._submit_later(process_queue, failed), "mqclient local retry")

    async def _submit_later(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        await self._clock.sleep(LOCAL_RETRY_S)
        for message in messages:
            message.reconsume_times += 1
        self.submit(process_queue, messages)

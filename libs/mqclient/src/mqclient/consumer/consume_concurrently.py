"""Hands messages to the listener, several at a time and in any order (MISSION C9, C12).

Invariants: at most `concurrency` listeners run; a message leaves its process queue when the listener has consumed it or
the broker has taken it back, and in no other way; whatever a listener does, the worker goes on; a message is given back
by its worker or, after the consume timeout, by the task that watches for it, never by both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from mqclient.consumer.consume_service import BY_RECONSUME_TIMES, Finish, GiveBack, Running
from mqclient.consumer.listener import ConsumeConcurrentlyContext
from mqclient.consumer.listening import Listening
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.errors import MQClientError
from mqclient.lifecycle import BackgroundTasks
from mqclient.message import MessageExt, MessageQueue
from osenv import Clock

logger = logging.getLogger("mqclient.consume_service")

LOCAL_RETRY_S = 5.0  # after a send-back that failed; RocketMQ waits as long

_Batch = tuple[ProcessQueue, list[MessageExt]]


@dataclass(slots=True)
class _Begun:
    """A batch that a listener is at; `at` is monotonic."""

    at: float
    process_queue: ProcessQueue
    messages: list[MessageExt]


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
        timeout_s: float,
    ) -> None:
        self._clock = clock
        self._listening = listening
        self._give_back = give_back
        self._finish = finish
        self._concurrency = concurrency
        self._batch_size_max = batch_size_max
        self._tasks = BackgroundTasks(clock)
        self._batches: asyncio.Queue[_Batch | None] = asyncio.Queue()  # None ends one worker
        self._timeout_s = timeout_s
        self._numbers = count()
        self._begun: dict[int, _Begun] = {}  # the longest first
        self._running = Running(clock)
        self._closing = False

    @property
    def running(self) -> int:
        return self._running.count

    def start(self) -> None:
        for number in range(self._concurrency):
            self._start_worker(number)
        self._tasks.start(self._watch_for_timeouts(), "mqclient consume timeout")

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
        context = ConsumeConcurrentlyContext(process_queue.queue)
        number = next(self._numbers)
        self._begun[number] = _Begun(self._clock.monotonic(), process_queue, messages)
        success, answer = await self._listening.listen(process_queue, messages, context)
        in_time = self._begun.pop(number, None) is not None
        consumed = _consumed_count(context, len(messages)) if success else 0
        if consumed:
            self._finish(process_queue, messages[:consumed])
        if in_time and consumed < len(messages):
            failed = await self._give_all_back(
                process_queue,
                messages[consumed:],
                "the listener acknowledged only the front of the batch" if success else answer,
                context.delay_level_when_next_consume,
            )
            if failed:
                self._tasks.start(self._submit_later(process_queue, failed), "mqclient local retry")

    async def _give_all_back(
        self,
        process_queue: ProcessQueue,
        messages: list[MessageExt],
        failure: object,
        delay_level: int = BY_RECONSUME_TIMES,
    ) -> list[MessageExt]:
        """Those that no broker has taken back, and that stay here."""
        failed = []
        for message in messages:
            if not process_queue.holds(message):
                continue  # handed over meanwhile: the new owner of the queue gets it again anyway
            try:
                await self._give_back(process_queue, message, failure=failure, delay_level=delay_level)
            except MQClientError as error:
                logger.warning("%r stays here and is tried again: %s", message, error)
                failed.append(message)
            else:
                self._finish(process_queue, [message])
        return failed

    async def _watch_for_timeouts(self) -> None:
        """Give back what a listener has been at for longer than the consume timeout; what fails, a timeout later."""
        while True:
            now = self._clock.monotonic()
            for number, begun in list(self._begun.items()):
                if begun.at + self._timeout_s > now:
                    break
                del self._begun[number]
                self._tasks.start(self._time_out(number, begun), "mqclient consume timed out")
            oldest = next(iter(self._begun.values()), None)
            await self._clock.sleep((now if oldest is None else oldest.at) + self._timeout_s - now)

    async def _time_out(self, number: int, begun: _Begun) -> None:
        failure = f"the listener has not returned within {self._timeout_s:g} s"
        logger.warning("%s: %s are sent back", failure, begun.messages)
        failed = await self._give_all_back(begun.process_queue, begun.messages, failure)
        if failed:
            self._begun[number] = _Begun(self._clock.monotonic(), begun.process_queue, failed)

    async def _submit_later(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        await self._clock.sleep(LOCAL_RETRY_S)
        for message in messages:
            message.reconsume_times += 1
        self.submit(process_queue, messages)


def _consumed_count(context: ConsumeConcurrentlyContext, batch_size: int) -> int:
    """How many messages from the front of the batch a listener has acknowledged that answered CONSUME_SUCCESS."""
    return batch_size if context.ack_index is None else max(0, min(context.ack_index + 1, batch_size))

"""Hands messages to the listener: several at a time and in any order, or one queue at a time each, in their order.

Invariants of both: a message leaves its process queue when the listener has consumed it or the broker has taken it
back, and in no other way; whatever a listener does, the worker goes on.

Concurrently: at most `concurrency` listeners run; a message is given back by its worker or, after the consume timeout,
by the task that watches for it, never by both.

In order: for each queue at most one listener runs, also while its process queue is replaced; it gets the smallest
unfinished messages, and what follows them waits until they are finished, whatever goes wrong; it begins with nothing
after the queue's lock has run out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from mqclient.consumer.consume_service import (
    BY_RECONSUME_TIMES,
    TO_DEAD_LETTERS,
    Finish,
    GiveBack,
    ProcessQueue,
    Running,
    Slots,
)
from mqclient.consumer.listener import ConsumeConcurrentlyContext, ConsumeOrderlyContext, ListenerInvoker
from mqclient.errors import MQClientError
from mqclient.lifecycle import BackgroundTasks, wait_event
from mqclient.message import MessageExt, MessageQueue
from osenv import Clock

logger = logging.getLogger("mqclient.consuming")

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
        listening: ListenerInvoker,
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
        """The messages that no broker has taken back, and that stay here."""
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


class _Runner:
    """Consumes one queue until there is nothing to do. `hurry` ends its pause after a failure."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.hurry = asyncio.Event()


class ConsumeMessageOrderlyService:
    """Runners around one listener, one for each queue that has messages. `may_consume` looks at the queue's lock."""

    def __init__(
        self,
        clock: Clock,
        listening: ListenerInvoker,
        give_back: GiveBack,
        finish: Finish,
        *,
        may_consume: Callable[[ProcessQueue], bool],
        concurrency: int,
        batch_size_max: int,
        reconsume_times_max: int | None,
        suspend_s: float,
    ) -> None:
        self._clock = clock
        self._listening = listening
        self._give_back = give_back
        self._finish = finish
        self._may_consume = may_consume
        self._batch_size_max = batch_size_max
        self._reconsume_times_max = reconsume_times_max
        self._suspend_s = suspend_s
        self._slots = Slots(concurrency)
        self._tasks = BackgroundTasks(clock)
        self._newest: dict[MessageQueue, ProcessQueue] = {}
        self._runners: dict[MessageQueue, _Runner] = {}
        self._running = Running(clock)
        self._closing = False

    @property
    def running(self) -> int:
        return self._running.count

    def start(self) -> None:
        """Nothing runs before there are messages."""

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        queue = process_queue.queue
        self._newest[queue] = process_queue
        if messages and queue not in self._runners and not self._closing:
            runner = self._runners[queue] = _Runner()
            runner.task = self._tasks.start(self._run(queue, runner), f"mqclient consume {queue}")

    def set_concurrency(self, count: int) -> None:
        self._slots.resize(count)

    async def finish(self, queue: MessageQueue) -> None:
        """Return when no listener runs for this queue, whose process queue has been dropped."""
        runner = self._runners.get(queue)
        if runner is not None:
            runner.hurry.set()
            await asyncio.wait([runner.task])
        newest = self._newest.get(queue)
        if newest is not None and newest.dropped:
            del self._newest[queue]

    async def close(self, timeout_s: float) -> bool:
        self._closing = True
        for runner in self._runners.values():
            runner.hurry.set()
        all_ended = await self._running.wait_idle(timeout_s)
        await self._tasks.close()
        return all_ended

    async def _run(self, queue: MessageQueue, runner: _Runner) -> None:
        try:
            while not self._closing:
                process_queue = self._newest[queue]
                messages = process_queue.first(self._batch_size_max)
                if not messages or not self._may_consume(process_queue):
                    return
                context = ConsumeOrderlyContext(queue)
                if not await self._consume(process_queue, messages, context):
                    wanted_s = context.suspend_current_queue_time_s
                    await wait_event(self._clock, runner.hurry, self._suspend_s if wanted_s is None else wanted_s)
        finally:
            del self._runners[queue]

    async def _consume(
        self, process_queue: ProcessQueue, messages: list[MessageExt], context: ConsumeOrderlyContext
    ) -> bool:
        """False when the queue has to pause before these messages are tried again."""
        async with self._slots:
            if self._closing or not process_queue.holds(messages[0]) or not self._may_consume(process_queue):
                return True
            with self._running:
                success, answer = await self._listening.listen(process_queue, messages, context)
                if success:
                    self._finish(process_queue, messages)
                    return True
                return await self._give_up(process_queue, messages, answer)

    async def _give_up(self, process_queue: ProcessQueue, messages: list[MessageExt], failure: object) -> bool:
        """Make dead letters of those that have failed too often; say whether that were all of them."""
        for message in messages:
            message.reconsume_times += 1
        most = self._reconsume_times_max
        hopeless = [message for message in messages if most is not None and message.reconsume_times > most]
        for message in hopeless:
            try:
                await self._give_back(process_queue, message, failure=failure, delay_level=TO_DEAD_LETTERS)
            except MQClientError as error:
                logger.warning("%r could not be given up, its queue waits: %s", message, error)
                return False
            self._finish(process_queue, [message])
        return len(hopeless) == len(messages)

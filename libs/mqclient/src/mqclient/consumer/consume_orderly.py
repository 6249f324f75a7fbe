"""Hands messages to the listener one queue at a time each, in their order (MISSION O1, O2).

Invariants: for each queue at most one listener runs, also while its process queue is replaced; it gets the smallest
unfinished messages, and what follows them waits until they are finished, whatever goes wrong; it begins with nothing
after the queue's lock has run out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mqclient.consumer.consume_service import TO_DEAD_LETTERS, Finish, GiveBack, Running, Slots
from mqclient.consumer.listener import ConsumeOrderlyContext
from mqclient.consumer.listening import Listening
from mqclient.consumer.process_queue import ProcessQueue
from mqclient.errors import MQClientError
from mqclient.lifecycle import BackgroundTasks, wait_event
from mqclient.message import MessageExt, MessageQueue
from osenv import Clock

logger = logging.getLogger("mqclient.consume_service")


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
        listening: Listening,
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

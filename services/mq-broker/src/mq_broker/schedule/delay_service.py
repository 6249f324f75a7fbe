"""Messages that wait, at work: each is delivered when it is due, and nobody polls (MISSION D1-D6).

Invariants: a record is never delivered before its due time in broker time; within a level, and at equal due times of
the timer, records are delivered in the order in which they were stored; a record is done only when what follows it has
been put into the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from mq_broker.core.batches import Batch
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delays import DelayLevels, DelayProgress
from mq_broker.core.life import NO_SPANS, Spans
from mq_broker.core.topics import CARRIED, TIMER, level_of
from mq_broker.schedule.carry_over import CarryOver
from mq_broker.schedule.delivery import Delivery, IsVoid
from mq_broker.schedule.level_queue import LevelQueue
from mq_broker.schedule.timer_index import TimerIndex
from mq_broker.schedule.timer_queue import TimerQueue
from mq_broker.schedule.waiting import first, waiting_in
from mq_broker.store.errors import NotMasterError, StoreFencedError, StoreWriteError
from mq_broker.store.key_run import DamagedRunError
from mq_broker.store.message_store import MessageStore
from mqproto.names import SCHEDULE_TOPIC
from mqproto.record import Record
from osenv import Clock, Disk, SyncError

log = logging.getLogger(__name__)

RETRY_AFTER_WRITE_ERROR_MS = 10_000  # MISSION D3
# Of the event loop between two steps: from its socket to its answer a frame of a producer takes so many.
TURNS_OF_OTHERS = 4

WaitingQueue = LevelQueue | TimerQueue


@dataclass
class DelayService:
    """Moves due records from the queues where they wait to where they belong.

    `put` appends batches to the log, creating topics where need be, and raises StoreWriteError.
    """

    store: MessageStore
    levels: DelayLevels
    progress: DelayProgress
    time: BrokerTime
    clock: Clock
    disk: Disk
    put: Callable[[list[Batch], int], object]
    is_void: IsVoid
    spans: Spans = NO_SPANS
    _queues: dict[int, WaitingQueue] = field(default_factory=dict, init=False)
    _retry_at_ms: dict[int, int] = field(default_factory=dict, init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self.delivery = Delivery(self.progress, self.time, self.put, self.store.run_bytes_max, self.is_void, self.spans)
        self.timer_index = TimerIndex(
            self.disk,
            self.clock,
            self.store.layout.timer,
            lambda offset: self.progress.is_done(TIMER, offset),
            self._log_durable,
        )
        self.timer = TimerQueue(self.store, self.progress, self.time, self.delivery, self.timer_index)
        self._carry_over = CarryOver(self.store, self.progress, self.time, self.due_ms, self.is_void)
        self._queues[TIMER] = self.timer
        earlier = {queue.queue_id + 1 for queue in self.store.queues.of_topic(SCHEDULE_TOPIC)}  # of a longer table
        for level in sorted({*range(1, self.levels.highest + 1), *earlier}):
            self._add_level(level)
        self.store.on_readable(self._arrived)
        self.store.on_enough_replicas(self._try_again)

    async def open(self) -> None:
        """Take up what the last process has left. Raises StoreError, OSError."""
        self.timer.open()
        await self._carry_over.carry([CARRIED], self.store.log_end)

    async def run(self) -> None:
        """Deliver for ever."""
        alarm = self.clock.alarm(self._wake.set)
        watch = self.clock.watch_wall(self._look_at_wall)
        try:
            self._wake.set()
            while True:
                wake_ms = first(*[self._wake_ms(queue) for queue in self._queues.values()])
                if wake_ms is not None:
                    alarm.set(self.time.seconds_until(wake_ms))
                await self._wake.wait()
                alarm.cancel()
                self._wake.clear()
                await self._work()
        finally:
            watch.cancel()
            alarm.close()

    async def keep_index(self) -> None:
        """Keep the timer's index on disk, for ever. Returns when the disk has failed."""
        while True:
            try:
                await self.timer_index.run()
            except DamagedRunError as error:
                await self.timer.begin_anew(error)
                self._wake.set()
            except SyncError as error:
                self.store.fence(error)
                return

    async def close(self) -> None:
        """After `run` has ended: leave the timer so that the next start finds everything at its place.

        What cannot be written is told the index again at the next start.
        """
        if self.store.failure is not None:
            self.timer_index.release()
            return
        try:
            await self.timer_index.close()
        except SyncError as error:
            self.store.fence(error)
        except (DamagedRunError, StoreFencedError) as error:
            log.error("the timer's index is not up to date: %s", error)  # noqa: TRY400

    async def carry_over(self, log_offset: int) -> int:
        """Write again what stands below `log_offset` and still waits; returns how many.

        Raises StoreError or OSError; what was not written again waits where it was.
        """
        return await self._carry_over.carry(self._queues, log_offset)

    def waiting_below(self, log_offset: int) -> AsyncIterator[tuple[int, int]]:
        """Log offset and size of what `carry_over` would write again, as the consume queues say."""
        return self._carry_over.waiting(self._queues, log_offset)

    @property
    def queues(self) -> Iterable[WaitingQueue]:
        """Where messages wait: the timer, and every level."""
        return self._queues.values()

    def waiting(self, level: int) -> int:
        """How many messages wait in the queue of this number."""
        return waiting_in(self.store, self.progress, level)

    def due_ms(self, level: int, record: Record) -> int:
        """When a waiting record of this queue is due; those of CARRIED are the timer's."""
        return self._queues.get(level, self.timer).due_ms(record)

    async def _log_durable(self) -> int:
        """Where the log ends on disk, once that is behind all that the index knows. Raises StoreFencedError."""
        await self.store.sync()
        return self.store.flusher.durable_end

    def _add_level(self, level: int) -> None:
        self._queues[level] = LevelQueue(level, self.store, self.levels, self.progress, self.time, self.delivery)

    def _look_at_wall(self) -> None:
        if self.timer.clocks_have_changed:
            self._wake.set()

    def _arrived(self, topic: str, queue_id: int) -> None:
        level = level_of(topic, queue_id)
        if level in self._queues and self._queues[level].arrived():
            self._wake.set()

    def _try_again(self) -> None:
        """The store takes writes again."""
        self._retry_at_ms.clear()
        self._wake.set()

    def _wake_ms(self, queue: WaitingQueue) -> int | None:
        """When the queue has something to do, and a disk that has refused may be asked again."""
        wake_ms = queue.wake_ms
        return None if wake_ms is None else max(wake_ms, self._retry_at_ms.get(queue.level, 0))

    async def _work(self) -> None:
        """Everything that there is to do now, one step of each queue at a time, so that none waits for another one."""
        ready = self._ready()
        while ready:
            for queue in ready:
                try:
                    await queue.step()
                except (StoreWriteError, NotMasterError, OSError) as error:  # who has stepped down still feeds slaves
                    log.warning("delay level %d: %s; next try in 10 s", queue.level, error)
                    self._retry_at_ms[queue.level] = self.time.now_ms() + RETRY_AFTER_WRITE_ERROR_MS
            if ready := self._ready():
                for _ in range(TURNS_OF_OTHERS):
                    await asyncio.sleep(0)

    def _ready(self) -> list[WaitingQueue]:
        now_ms = self.time.now_ms()
        return [queue for queue in self._queues.values() if (at := self._wake_ms(queue)) is not None and at <= now_ms]

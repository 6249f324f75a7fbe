"""Delivers each waiting message when it is due, without polling (mechanisms D1-D6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from mq_broker.core.batches import CQ_ENTRY, Batch, runs
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delays import DelayLevels, DelayProgress
from mq_broker.core.life import NO_SPANS, Spans
from mq_broker.core.rewrite import due_then_ms, promised_queue, waiting_copy
from mq_broker.core.topics import CARRIED, TIMER, level_of, waiting_queue
from mq_broker.schedule.delivery import (
    AHEAD_BYTES_MAX,
    AHEAD_MS,
    AHEAD_RECORDS_MAX,
    DELIVER_RECORDS_MAX,
    Ahead,
    Delivery,
    IsVoid,
    first,
    give_up_lost,
    make_ready,
    waiting_in,
)
from mq_broker.schedule.timer_index import TimerIndex
from mq_broker.schedule.timer_queue import TimerQueue
from mq_broker.schedule.timer_runs import DamagedRunError
from mq_broker.store.consume_queue import ENTRY_SIZE_MAX, ConsumeQueue
from mq_broker.store.errors import NotMasterError, StoreFencedError, StoreWriteError
from mq_broker.store.message_store import MessageStore
from mqproto.names import SCHEDULE_TOPIC
from mqproto.record import Record
from osenv import Clock, Disk, SyncError

log = logging.getLogger(__name__)


@dataclass
class LevelQueue:
    """One delay level: its records are due in the order in which they were stored (mechanisms D2-D4).

    Invariant: what is ahead in memory are the first records of the queue that were not done when they were read.
    """

    level: int
    store: MessageStore
    levels: DelayLevels
    progress: DelayProgress
    time: BrokerTime
    delivery: Delivery
    _ahead: Ahead = field(default_factory=Ahead, init=False)
    _read_to: int = field(default=0, init=False)
    _may_have_more: bool = field(default=True, init=False)  # than what is ahead

    @property
    def waiting(self) -> int:
        """Records that are not done."""
        return waiting_in(self.store, self.progress, self.level)

    @property
    def next_due_ms(self) -> int | None:
        """When the first record is due, or before that when what is ahead was taken back; None when no record waits."""
        return self._ahead.first_due_ms_but(lambda offset: self.progress.is_done(self.level, offset))

    @property
    def wake_ms(self) -> int | None:
        """When `step` has something to do: to deliver, or to read; None: not before something arrives."""
        return first(self._ahead.first_due_ms, self._read_at_ms)

    def arrived(self) -> bool:
        """Something new can be read. Whether that is worth a look now: what comes later is due later."""
        self._may_have_more = True
        return self._ahead.first_due_ms is None

    async def step(self) -> None:
        """Do some of what there is to do. Raises StoreError, OSError; then nothing is lost."""
        now_ms = self.time.now_ms()
        self.delivery.deliver_due(self.level, self._ahead, now_ms)
        read_at_ms = self._read_at_ms
        if read_at_ms is not None and read_at_ms <= now_ms:
            await self._read_ahead(self.store.queue(*waiting_queue(self.level)))

    def due_ms(self, record: Record) -> int:
        """When this record of the level is due (mechanism D4)."""
        promised_ms = due_then_ms(record)
        if promised_ms is None:  # RocketMQ's: its due time is in the consume queue only
            promised_ms = record.store_timestamp_ms + self.levels.delay_ms(self.levels.effective(self.level))
        return self.levels.due_ms(self.level, record.store_timestamp_ms, promised_ms)

    @property
    def _read_at_ms(self) -> int | None:
        if not self._may_have_more or not self._ahead.has_room:
            return None
        last_ms = self._ahead.last_due_ms
        return 0 if last_ms is None else last_ms - AHEAD_MS

    async def _read_ahead(self, queue: ConsumeQueue | None) -> None:
        self._may_have_more = False
        if queue is None:
            return
        try:
            self.progress.done_below(self.level, queue.min_offset)
            begin = max(self._read_to, self.progress.next_offset(self.level))
            records, scanned = await self.store.reader.read_queue(queue, begin, AHEAD_RECORDS_MAX, AHEAD_BYTES_MAX)
        except BaseException:
            self._may_have_more = True
            raise
        waiting = [record for record in records if not self.progress.is_done(self.level, record.queue_offset)]
        made = [make_ready(self.level, self.due_ms(record), record) for record in waiting]
        ready = {one.queue_offset: one for one in made if one is not None}
        self._ahead.add(ready.values())
        self._read_to = begin + scanned
        give_up_lost(self.progress, self.level, range(begin, self._read_to), ready)
        self._may_have_more |= scanned > 0


RETRY_AFTER_WRITE_ERROR_MS = 10_000  # mechanism D3
# Of the event loop between two steps: from its socket to its answer a frame of a producer takes so many.
TURNS_OF_OTHERS = 4

WaitingQueue = LevelQueue | TimerQueue


@dataclass
class DelayService:
    """Moves due records from the queues where they wait to where they belong.

    `put` appends batches to the log, creating topics where need be, and raises StoreWriteError.

    Invariants: a record is never delivered before its due time in broker time; within a level, and at equal due times
    of the timer, records are delivered in the order in which they were stored; a record is done only when what follows
    it has been put into the log.
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
        """When the queue has something to do, and a disk that has rejected may be asked again."""
        wake_ms = queue.wake_ms
        return None if wake_ms is None else max(wake_ms, self._retry_at_ms.get(queue.level, 0))

    async def _work(self) -> None:
        """Everything that there is to do now, one step of each queue at a time, so that none waits for another one."""
        ready = self._ready()
        while ready:
            for queue in ready:
                try:
                    await queue.step()
                except (StoreWriteError, NotMasterError, OSError) as error:  # after a step down, replicas are fed
                    log.warning("delay level %d: %s; next try in 10 s", queue.level, error)
                    self._retry_at_ms[queue.level] = self.time.now_ms() + RETRY_AFTER_WRITE_ERROR_MS
            if ready := self._ready():
                for _ in range(TURNS_OF_OTHERS):
                    await asyncio.sleep(0)

    def _ready(self) -> list[WaitingQueue]:
        now_ms = self.time.now_ms()
        return [queue for queue in self._queues.values() if (at := self._wake_ms(queue)) is not None and at <= now_ms]


ENTRIES_AT_ONCE = 1_024  # looked at in one step of the event loop: well under a millisecond


@dataclass
class CarryOver:
    """Waiting records whose file of the log has to go are written again at its end, for the timer (ADR 13).

    `due_ms` tells when a record of the queue with this number is due.

    Invariants: what was written again is done in the same step of the event loop, so it is never delivered from both
    places; a record that could not be written again waits where it was.
    """

    store: MessageStore
    progress: DelayProgress
    time: BrokerTime
    due_ms: Callable[[int, Record], int]
    is_void: IsVoid

    async def carry(self, levels: Iterable[int], log_offset: int) -> int:
        """Write again what stands below `log_offset` and waits in the queues of these numbers; returns how many.

        Raises StoreError or OSError.
        """
        return sum([await self._carry_queue(level, log_offset) for level in levels])

    async def waiting(self, levels: Iterable[int], log_offset: int) -> AsyncIterator[tuple[int, int]]:
        """Log offset and size of what stands below `log_offset` and waits in these queues, as their entries say.

        Raises OSError.
        """
        for level in levels:
            queue = self.store.queue(*waiting_queue(level))
            offset = max(queue.min_offset, self.progress.next_offset(level)) if queue is not None else 0
            while queue is not None and offset < queue.max_offset:
                entries = queue.read_hot(offset, ENTRIES_AT_ONCE)
                if entries is None:
                    entries = await self.store.cold_reads.read(partial(queue.read, offset, ENTRIES_AT_ONCE))
                for number, (at, size, _) in enumerate(CQ_ENTRY.iter_unpack(entries), offset):
                    if at < log_offset and size < ENTRY_SIZE_MAX and not self.progress.is_done(level, number):
                        yield at, size
                if at >= log_offset:
                    break
                offset += ENTRIES_AT_ONCE
                await asyncio.sleep(0)

    async def _carry_queue(self, level: int, log_offset: int) -> int:
        queue = self.store.queue(*waiting_queue(level))
        if queue is None:
            return 0
        offset, end, count = queue.min_offset, queue.max_offset, 0
        while (offset := max(offset, self.progress.next_offset(level))) < end:
            if self.progress.is_done(level, offset):
                offset += 1
                continue
            # The records themselves say where they stand: an entry may be damaged.
            records, scanned = await self.store.reader.read_queue(queue, offset, DELIVER_RECORDS_MAX)
            below = [record for record in records if record.log_offset < log_offset]
            count += self._carry(level, [one for one in below if not self.progress.is_done(level, one.queue_offset)])
            if not scanned or len(below) < len(records):
                break
            offset += scanned
            await asyncio.sleep(0)
        return count

    def _carry(self, level: int, records: list[Record]) -> int:
        copies = []
        for record in records:
            promised = promised_queue(record)
            if promised is not None and self.is_void(promised[0], record.log_offset):
                self.progress.done(level, record.queue_offset)  # a copy would outlive the reason
            else:
                copy = waiting_copy(record, (level, record.queue_offset), self.due_ms(level, record))
                copies.append((record.queue_offset, copy))
        for run in runs(copies, self.store.run_bytes_max, lambda copy: copy[1]):
            self.store.put([batch for _, batch in run], self.time.stamp_ms(), inward=True)
            for offset, _ in run:
                self.progress.done(level, offset)
        return len(copies)

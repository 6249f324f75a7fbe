"""The timer: records that are due at any millisecond, in the order of their due times.

Delays run in broker time, times of the calendar by the wall clock. While these differ (docs/adr/0092) everything here
is by the one that is ahead, and a message by the other one is so much later: the index has it at its own due time,
where it is found too early, and is put back with what is missing. When the difference changes the index is built anew.

They stand in one queue in the order of their arrival; the index says in which order they are due, and the records say
when. What the index has lost it is told again from the queue. Records are read and made ready a little before they are
due, as those of a delay level.

Invariant: every loaded record of the queue that is not done is in the index, or ahead in memory, or both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delays import DelayProgress
from mq_broker.core.rewrite import due_then_ms, follows_wall_clock
from mq_broker.core.topics import TIMER
from mq_broker.schedule.delivery import (
    AHEAD_MS,
    AHEAD_RECORDS_MAX,
    Ahead,
    Delivery,
    first,
    give_up_lost,
    make_ready,
    waiting_in,
)
from mq_broker.schedule.timer_index import TimerIndex
from mq_broker.schedule.timer_runs import DamagedRunError
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.message_store import MessageStore
from mqproto.names import TIMER_TOPIC
from mqproto.record import Record

log = logging.getLogger(__name__)

LOAD_ENTRIES = 1_024  # told to the index in one step
LOAD_RECORDS, LOAD_BYTES_MAX = 128, 1024 * 1024  # the same from disk, where the records have to be read


@dataclass
class TimerQueue:
    """The queue of the timer, with the interface of a LevelQueue."""

    store: MessageStore
    progress: DelayProgress
    time: BrokerTime
    delivery: Delivery
    index: TimerIndex
    level: int = field(default=TIMER, init=False)
    _ahead: Ahead = field(default_factory=Ahead, init=False)
    _loaded_to: int = field(default=0, init=False)
    _may_have_more: bool = field(default=True, init=False)  # than what the index has been told of
    _ahead_of_wall_ms: int = field(default=0, init=False)  # broker time, when the index was begun
    _using_index: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def open(self) -> None:
        """Take the index up where the last process left it; may block. Raises OSError."""
        queue = self._queue
        self._loaded_to = self.index.open(queue.max_offset if queue else 0)
        self._take_difference()

    async def begin_anew(self, error: DamagedRunError) -> None:
        """The index is damaged: it is told everything again. Raises OSError."""
        log.error("the timer's index is built anew: %s", error)
        await self._build_anew()

    async def _build_anew(self) -> None:
        async with self._using_index:
            await self.index.reset()
            self._ahead.take_all()
            self._loaded_to = 0
            self._may_have_more = True
            self._take_difference()

    @property
    def clocks_have_changed(self) -> bool:
        """Whether the wall clock was stepped since the index was begun."""
        return self.time.ahead_of_wall_ms != self._ahead_of_wall_ms

    def _take_difference(self) -> None:
        self._ahead_of_wall_ms = self.time.ahead_of_wall_ms
        self.index.keys_move(moved=self._ahead_of_wall_ms != 0)

    @property
    def _fast_ms(self) -> int:
        """How far the clock that is ahead is ahead of broker time: not at all, or the wall clock is."""
        return max(0, -self._ahead_of_wall_ms)

    def _now_ms(self) -> int:
        return self.time.now_ms() + self._fast_ms

    def _key_ms(self, record: Record) -> int:
        """When the record is due by the clock that is ahead."""
        behind_ms = max(0, self._ahead_of_wall_ms) if follows_wall_clock(record) else self._fast_ms
        return self.due_ms(record) + behind_ms

    @property
    def waiting(self) -> int:
        """Records that are not done."""
        return waiting_in(self.store, self.progress, TIMER)

    @property
    def next_due_ms(self) -> int | None:
        """When the first record is due; None when no record waits."""
        next_ms = first(self._ahead.first_due_ms, self.index.next_due_ms)
        if next_ms is None:
            return None
        if self.clocks_have_changed:  # until the index is built anew, this is earlier rather than later
            return next_ms - abs(self._ahead_of_wall_ms) - max(0, -self.time.ahead_of_wall_ms)
        return next_ms - self._fast_ms

    @property
    def wake_ms(self) -> int | None:
        """When `step` has something to do: to load, to read or to deliver; None: not before something arrives."""
        if self._may_have_more or self.clocks_have_changed:
            return 0
        wake_ms = first(self._ahead.first_due_ms, self._read_at_ms)
        return None if wake_ms is None else max(0, wake_ms - self._fast_ms)

    def arrived(self) -> bool:
        """Something new can be read: it may be the first one due."""
        self._may_have_more = True
        return True

    async def step(self) -> None:
        """Do some of what there is to do. Raises StoreError, OSError; then nothing is lost."""
        if self.clocks_have_changed:
            log.warning("the wall clock was stepped: broker time is %d ms ahead of it", self.time.ahead_of_wall_ms)
            await self._build_anew()
        self.delivery.deliver_due(TIMER, self._ahead, self._now_ms(), self._fast_ms)
        queue = self._queue
        try:
            async with self._using_index:
                await self._load(queue)
                read_at_ms = self._read_at_ms
                if queue is not None and read_at_ms is not None and read_at_ms <= self._now_ms():
                    await self._read_ahead(queue)
        except DamagedRunError as error:
            await self.begin_anew(error)

    def due_ms(self, record: Record) -> int:
        """When this record of the timer is due by its own clock, as it says itself; at once if it does not."""
        return due_then_ms(record) or 0

    @property
    def _queue(self) -> ConsumeQueue | None:
        return self.store.queue(TIMER_TOPIC, 0)

    @property
    def _read_at_ms(self) -> int | None:
        """When more has to be read: at once when something has come that is due before what is ahead."""
        next_ms, last_ms = self.index.next_due_ms, self._ahead.last_due_ms
        if next_ms is None:
            return None
        if last_ms is None:
            return next_ms - AHEAD_MS
        if next_ms < last_ms:
            return 0
        return next_ms - AHEAD_MS // 2 if self._ahead.has_room else None

    async def _load(self, queue: ConsumeQueue | None) -> None:
        """Tell the index some of what has become readable."""
        if not self._may_have_more:
            return
        self._may_have_more = False
        if queue is None:
            return
        try:
            await self._load_from(queue)
        except BaseException:
            self._may_have_more = True
            raise

    async def _load_from(self, queue: ConsumeQueue) -> None:
        self.progress.done_below(TIMER, queue.min_offset)
        begin = max(self._loaded_to, self.progress.next_offset(TIMER))
        # While the clocks differ, only a record says by which of them it is due.
        hot = self._hot_dues(queue, begin) if not self._ahead_of_wall_ms else None
        dues_ms, end = hot or await self._cold_dues(queue, begin)
        for offset, due_ms in dues_ms.items():
            if not self.progress.is_done(TIMER, offset):
                self.index.add(due_ms, offset)
        self._loaded_to = end
        self.index.cover(end)
        if end > begin:
            self._may_have_more = True
            await self.index.wait_room()

    def _hot_dues(self, queue: ConsumeQueue, begin: int) -> tuple[dict[int, int], int] | None:
        """Due times by offset and the end of them, as this process has written them; None when it has not."""
        entries = queue.read_hot(begin, LOAD_ENTRIES)
        if entries is None:
            return None
        dues_ms, readable_end = {}, self.store.readable_end
        for offset, (log_offset, size, due_ms) in enumerate(CQ_ENTRY.iter_unpack(entries), begin):
            if log_offset + size > readable_end:
                break
            dues_ms[offset] = due_ms
        return dues_ms, begin + len(dues_ms)

    async def _cold_dues(self, queue: ConsumeQueue, begin: int) -> tuple[dict[int, int], int]:
        """The same from disk, where only records can prove when they are due: entries have no CRC. Raises OSError."""
        records, scanned = await self.store.reader.read_queue(queue, begin, LOAD_RECORDS, LOAD_BYTES_MAX)
        dues_ms = {record.queue_offset: self._key_ms(record) for record in records}
        end = begin + scanned
        give_up_lost(self.progress, TIMER, range(begin, end), dues_ms)
        return dues_ms, end

    async def _read_ahead(self, queue: ConsumeQueue) -> None:
        """Have the first ones of the index ready in memory; what was there goes back, and comes again if it is due."""
        self.progress.done_below(TIMER, queue.min_offset)
        before = self._ahead.take_all()
        for one in before:
            self.index.add(one.due_ms, one.queue_offset)
        taken = await self.index.take_due(self._now_ms() + AHEAD_MS, AHEAD_RECORDS_MAX)
        ready = {one.queue_offset: one for one in before}
        bytes_free = self._ahead.bytes_free - sum(len(one.batch.buffer) for one in before)
        try:
            wanted = [offset for _, offset in taken if offset not in ready]
            records, looked_at = await self.store.reader.read_scattered(queue, wanted, bytes_free)
        except BaseException:
            self._give_back(taken)
            raise
        made = [make_ready(TIMER, self._key_ms(one), one) for one in records]
        ready |= {one.queue_offset: one for one in made if one is not None}
        give_up_lost(self.progress, TIMER, wanted[:looked_at], ready)
        for due_ms, offset in taken:
            if offset not in ready:  # no room for it yet
                self._give_back([(due_ms, offset)])
            elif ready[offset].due_ms != due_ms:  # its clock is behind, or its entry was damaged when it was loaded
                self._give_back([(ready[offset].due_ms, offset)])
            else:
                self._ahead.add([ready[offset]])

    def _give_back(self, taken: Sequence[tuple[int, int]]) -> None:
        for due_ms, offset in taken:
            if not self.progress.is_done(TIMER, offset):
                self.index.add(due_ms, offset)

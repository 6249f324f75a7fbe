"""The delay levels at work: each delayed record is delivered when it is due, and nobody polls (MISSION D1-D6).

Invariants: a record is never delivered before its due time in broker time; within a level, records are delivered in the
order in which they were stored; progress moves only past records that have been put into the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from mq_broker.core.batches import Batch
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delay_levels import DelayLevels
from mq_broker.core.delay_progress import CARRIED, DelayProgress
from mq_broker.core.rewrite import carried_record, deliver_record, due_then_ms
from mq_broker.schedule.carried import CarriedMessages
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.errors import StoreError, StoreWriteError
from mq_broker.store.message_store import MessageStore
from mqproto.names import CARRIED_TOPIC, SCHEDULE_TOPIC
from mqproto.record import Record
from osenv import Clock, Timer

log = logging.getLogger(__name__)

DELIVER_RECORDS_MAX = 64  # records moved with one write, after which producers have their turn
RETRY_AFTER_WRITE_ERROR_MS = 10_000  # MISSION D3


@dataclass(slots=True)
class LevelStatistics:
    """One level since the process started."""

    delivered: int = 0
    lateness_max_ms: int = 0

    def count(self, dues: list[int], now_ms: int) -> None:
        """Records that were due then have been delivered now."""
        self.delivered += len(dues)
        self.lateness_max_ms = max([self.lateness_max_ms, *(now_ms - due_ms for due_ms in dues)])


@dataclass(slots=True)
class _Head:
    """The first record of a level that has not been delivered."""

    offset: int
    due_ms: int


@dataclass
class DelayService:
    """Moves due records from the schedule topic to where they belong.

    `put` appends batches to the log, creating topics where need be, and raises StoreWriteError.
    """

    store: MessageStore
    levels: DelayLevels
    progress: DelayProgress
    time: BrokerTime
    clock: Clock
    put: Callable[[list[Batch], int], object]
    statistics: dict[int, LevelStatistics] = field(default_factory=dict)
    _heads: dict[int, _Head] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _moving: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.carried = CarriedMessages(self.store, self.progress)
        self.store.on_readable(self._arrived)

    async def run(self) -> None:
        """Deliver for ever."""
        self._wake.set()
        while True:
            timer = self._arm()
            await self._wake.wait()
            if timer:
                timer.cancel()
            self._wake.clear()
            for level in range(CARRIED, self._level_count() + 1):
                try:
                    async with self._moving:
                        await (self._deliver_due(level) if level != CARRIED else self._deliver_carried())
                except (StoreWriteError, OSError) as error:
                    log.warning("delay level %d: %s; next try in 10 s", level, error)
                    retry_ms = self.time.now_ms() + RETRY_AFTER_WRITE_ERROR_MS
                    self._heads[level] = _Head(self.progress.next_offset(level), retry_ms)

    async def carry_over(self, log_offset: int) -> int:
        """Write again what stands below `log_offset` and still waits; returns how many.

        Raises StoreError or OSError; what was not written again waits where it was.
        """
        async with self._moving:
            count = sum([await self._carry_level(level, log_offset) for level in range(1, self._level_count() + 1)])
            await self.carried.load()
            while (records := await self.carried.take_below(log_offset, DELIVER_RECORDS_MAX)) is not None:
                try:
                    self._put_carried([(CARRIED, due_then_ms(record) or 0, record) for record in records])
                except StoreError:
                    self.carried.put_back(records)
                    raise
                self.carried.done(records)
                count += len(records)
        self._heads.clear()
        self._wake.set()
        return count

    async def _carry_level(self, level: int, log_offset: int) -> int:
        queue = self.store.queue(SCHEDULE_TOPIC, level - 1)
        count = 0
        while queue is not None and (offset := self._next_offset(level, queue)) < queue.max_offset:
            # The records themselves say where they stand: an entry may be damaged.
            records, scanned = await self.store.reader.read_queue(queue, offset, DELIVER_RECORDS_MAX)
            below = [record for record in records if record.log_offset < log_offset]
            if not scanned or (records and not below):
                break
            self._put_carried([(level, self.due_ms(level, record), record) for record in below])
            following = records[len(below)].queue_offset if len(below) < len(records) else offset + scanned
            self.progress.delivered(level, following - 1)
            count += len(below)
        return count

    def _put_carried(self, waiting: list[tuple[int, int, Record]]) -> None:
        if waiting:
            batches = [carried_record(record, level, due_ms) for level, due_ms, record in waiting]
            self.store.put_in_runs(batches, self.time.stamp_ms(), inward=True)

    async def _deliver_carried(self) -> None:
        head = self._heads.get(CARRIED)
        if head is not None and head.due_ms > self.time.now_ms():
            return
        await self.carried.load()
        while (records := await self.carried.take_due(self.time.now_ms(), DELIVER_RECORDS_MAX)) is not None:
            now_ms = self.time.now_ms()
            try:
                self.put([deliver_record(record, CARRIED) for record in records], self.time.stamp_ms())
            except StoreError:
                self.carried.put_back(records)
                raise
            self.carried.done(records)
            dues = [due_then_ms(record) or 0 for record in records]
            self.statistics.setdefault(CARRIED, LevelStatistics()).count(dues, now_ms)
            await asyncio.sleep(0)
        if (due_ms := self.carried.next_due_ms) is None:
            self._heads.pop(CARRIED, None)
        else:
            self._heads[CARRIED] = _Head(0, due_ms)

    def waiting(self, level: int) -> int:
        """Records of this level that have not been delivered."""
        queue = self.store.queue(SCHEDULE_TOPIC, level - 1)
        return max(0, queue.max_offset - self._next_offset(level, queue)) if queue else 0

    def _arrived(self, topic: str, queue_id: int) -> None:
        # A level that has a head already waits for it: what comes later in the same level is due later.
        if topic == SCHEDULE_TOPIC and queue_id + 1 not in self._heads:
            self._wake.set()
        elif topic == CARRIED_TOPIC:
            self._heads.pop(CARRIED, None)  # among carried messages the new one may be the first
            self._wake.set()

    def _arm(self) -> Timer | None:
        """The timer that wakes us when the earliest head is due."""
        if not self._heads:
            return None
        earliest_ms = min(head.due_ms for head in self._heads.values())
        return self.clock.call_later(self.time.seconds_until(earliest_ms), self._wake.set)

    async def _deliver_due(self, level: int) -> None:
        """Deliver what is due in this level and find its next head."""
        queue = self.store.queue(SCHEDULE_TOPIC, level - 1)
        head = self._heads.get(level)
        if queue is None or (head is not None and head.due_ms > self.time.now_ms()):
            return
        while True:
            batches, dues, following, next_head = await self._collect(level, queue)
            if following == self._next_offset(level, queue):
                break
            now_ms = self.time.now_ms()
            if batches:
                self.put(batches, self.time.stamp_ms())
                self.statistics.setdefault(level, LevelStatistics()).count(dues, now_ms)
            self.progress.delivered(level, following - 1)
            await asyncio.sleep(0)
        if next_head is None:
            self._heads.pop(level, None)
        else:
            self._heads[level] = next_head

    async def _collect(self, level: int, queue: ConsumeQueue) -> tuple[list[Batch], list[int], int, _Head | None]:
        """The next due records as batches with their due times and the offset behind them, or the head not yet due."""
        batches: list[Batch] = []
        dues: list[int] = []
        offset = self._next_offset(level, queue)
        records, scanned = await self.store.reader.read_queue(queue, offset, DELIVER_RECORDS_MAX)
        now_ms = self.time.now_ms()
        for record in records:
            due_ms = self.due_ms(level, record)
            if due_ms > now_ms:
                return batches, dues, record.queue_offset, _Head(record.queue_offset, due_ms)
            batches.append(deliver_record(record, level))
            dues.append(due_ms)
        return batches, dues, offset + scanned, None

    def due_ms(self, level: int, record: Record) -> int:
        """When this record of the level is due (MISSION D4)."""
        promised_ms = due_then_ms(record)
        if promised_ms is None:  # RocketMQ's: its due time is in the consume queue only
            promised_ms = record.store_timestamp_ms + self.levels.delay_ms(self.levels.effective(level))
        return self.levels.due_ms(level, record.store_timestamp_ms, promised_ms)

    def _next_offset(self, level: int, queue: ConsumeQueue) -> int:
        return max(self.progress.next_offset(level), queue.min_offset)

    def _level_count(self) -> int:
        """Levels of the table, and those that an earlier, longer table has left records in."""
        level = self.levels.highest
        while self.store.queue(SCHEDULE_TOPIC, level) is not None:
            level += 1
        return level

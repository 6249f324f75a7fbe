"""The delay levels at work: each delayed record is delivered when it is due, and nobody polls (MISSION D1-D6).

Invariants: a record is never delivered before its due time in broker time; within a level, records are delivered in the
order in which they were stored; progress moves only past records that have been put into the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from mq_broker.core.batches import CQ_ENTRY, Batch
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delay_levels import DelayLevels
from mq_broker.core.delay_progress import DelayProgress
from mq_broker.core.rewrite import deliver_record
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.errors import StoreWriteError
from mq_broker.store.message_store import MessageStore
from mqproto.names import SCHEDULE_TOPIC
from osenv import Clock, Timer

log = logging.getLogger(__name__)

DELIVER_RECORDS_MAX = 64  # records moved with one write, after which producers have their turn
RETRY_AFTER_WRITE_ERROR_MS = 10_000  # MISSION D3


@dataclass(slots=True)
class LevelStatistics:
    """One level since the process started."""

    delivered: int = 0
    lateness_max_ms: int = 0


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

    def __post_init__(self) -> None:
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
            for level in range(1, self._level_count() + 1):
                try:
                    await self._deliver_due(level)
                except StoreWriteError as error:
                    log.warning("delay level %d: %s; next try in 10 s", level, error)
                    retry_ms = self.time.now_ms() + RETRY_AFTER_WRITE_ERROR_MS
                    self._heads[level] = _Head(self.progress.next_offset(level), retry_ms)

    def waiting(self, level: int) -> int:
        """Records of this level that have not been delivered."""
        queue = self.store.queue(SCHEDULE_TOPIC, level - 1)
        return max(0, queue.max_offset - self._next_offset(level, queue)) if queue else 0

    def _arrived(self, topic: str, queue_id: int) -> None:
        # A level that has a head already waits for it: what comes later in the same level is due later.
        if topic == SCHEDULE_TOPIC and queue_id + 1 not in self._heads:
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
            batches, dues, next_head = await self._collect(level, queue)
            if not batches:
                break
            now_ms = self.time.now_ms()
            self.put(batches, self.time.stamp_ms())
            self._delivered(level, batches, dues, now_ms, queue)
            await asyncio.sleep(0)
        if next_head is None:
            self._heads.pop(level, None)
        else:
            self._heads[level] = next_head

    async def _collect(self, level: int, queue: ConsumeQueue) -> tuple[list[Batch], list[int], _Head | None]:
        """The next due records as batches with their due times, or none and the head that is not due yet."""
        batches: list[Batch] = []
        dues: list[int] = []
        offset = self._next_offset(level, queue)
        entries = queue.read_hot(offset, DELIVER_RECORDS_MAX)
        if entries is None:
            entries = await self.store.read_entries(queue, offset, DELIVER_RECORDS_MAX)
        readable = [entry for entry in CQ_ENTRY.iter_unpack(entries) if entry[0] + entry[1] <= self.store.readable_end]
        records = await self.store.read_records([(log_offset, size) for log_offset, size, _ in readable])
        now_ms = self.time.now_ms()
        for record, (_, _, due_then_ms) in zip(records, readable, strict=True):
            due_ms = self.levels.due_ms(level, record.store_timestamp_ms, due_then_ms)
            if due_ms > now_ms:
                return batches, dues, _Head(offset + len(batches), due_ms)
            batches.append(deliver_record(record, level))
            dues.append(due_ms)
        return batches, dues, None

    def _delivered(self, level: int, batches: list[Batch], dues: list[int], now_ms: int, queue: ConsumeQueue) -> None:
        self.progress.delivered(level, self._next_offset(level, queue) + len(batches) - 1)
        statistics = self.statistics.setdefault(level, LevelStatistics())
        statistics.delivered += len(batches)
        statistics.lateness_max_ms = max(statistics.lateness_max_ms, now_ms - min(dues))

    def _next_offset(self, level: int, queue: ConsumeQueue) -> int:
        return max(self.progress.next_offset(level), queue.min_offset)

    def _level_count(self) -> int:
        """Levels of the table, and those that an earlier, longer table has left records in."""
        level = self.levels.highest
        while self.store.queue(SCHEDULE_TOPIC, level) is not None:
            level += 1
        return level

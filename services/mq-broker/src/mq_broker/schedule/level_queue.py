"""One delay level: its records are due in the order in which they were stored (MISSION D2-D4).

Invariant: what is ahead in memory are the first records of the queue that were not done when they were read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delays import DelayLevels, DelayProgress
from mq_broker.core.rewrite import due_then_ms
from mq_broker.core.topics import waiting_queue
from mq_broker.schedule.ahead import AHEAD_BYTES_MAX, AHEAD_MS, AHEAD_RECORDS_MAX, Ahead, make_ready
from mq_broker.schedule.delivery import Delivery
from mq_broker.schedule.waiting import first, give_up_lost, waiting_in
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.message_store import MessageStore
from mqproto.record import Record


@dataclass
class LevelQueue:
    """The queue of one level."""

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
        """When this record of the level is due (MISSION D4)."""
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

"""Delayed messages that were carried over: their first file of the log had to go before they were due.

They stand in one queue in the order in which they were carried, and wait here in the order of their due times.

Invariants: every record of the queue that is neither delivered nor carried again is in the heap, once; the heap holds
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from mq_broker.core.delay_progress import CARRIED, DelayProgress
from mq_broker.core.rewrite import due_then_ms
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.message_store import MessageStore
from mqproto.names import CARRIED_TOPIC
from mqproto.record import Record

LOAD_RECORDS = 1_024


@dataclass
class CarriedMessages:
    """The heap: about 100 bytes a message that waits."""

    store: MessageStore
    progress: DelayProgress
    _heap: list[tuple[int, int]] = field(default_factory=list)  # (due ms, queue offset)
    _loaded_to: int = 0

    @property
    def queue(self) -> ConsumeQueue | None:
        """Where they stand."""
        return self.store.queue(CARRIED_TOPIC, 0)

    @property
    def waiting(self) -> int:
        """How many there are."""
        return len(self._heap)

    @property
    def next_due_ms(self) -> int | None:
        """When the first of them is due."""
        return self._heap[0][0] if self._heap else None

    async def load(self) -> None:
        """Take up what has become readable since the last time. Raises OSError."""
        queue = self.queue
        if queue is None:
            return
        self.progress.skip_carried(queue.min_offset)
        self._loaded_to = max(self._loaded_to, self.progress.next_offset(CARRIED))
        while self._loaded_to < queue.max_offset:
            records, scanned = await self.store.reader.read_queue(queue, self._loaded_to, LOAD_RECORDS)
            if not scanned:
                return  # not readable yet
            found = {record.queue_offset: record for record in records}
            for offset in range(self._loaded_to, self._loaded_to + scanned):
                record = found.get(offset)
                if record is None:
                    self.progress.delivered(CARRIED, offset)  # lost to damage, which has been reported
                elif not self.progress.is_delivered(CARRIED, offset):
                    heappush(self._heap, (due_then_ms(record) or 0, offset))
            self._loaded_to += scanned

    async def take_due(self, now_ms: int, count: int) -> list[Record]:
        """Up to `count` records that are due, to be delivered now; then `done` or `put_back`. Raises OSError."""
        taken: list[tuple[int, int]] = []
        while self._heap and len(taken) < count and self._heap[0][0] <= now_ms:
            taken.append(heappop(self._heap))
        return await self._read(taken)

    async def take_below(self, log_offset: int, count: int) -> list[Record]:
        """Up to `count` records that stand below `log_offset` in the log, to be carried again; likewise."""
        queue = self.queue
        below: set[int] = set()
        for offset in sorted(offset for _, offset in self._heap):
            if queue is None or len(below) == count or queue.entry(offset)[0] >= log_offset:
                break
            below.add(offset)
        taken = sorted(item for item in self._heap if item[1] in below)
        self._heap = sorted(item for item in self._heap if item[1] not in below)  # a sorted list is a heap
        return await self._read(taken)

    def done(self, records: list[Record]) -> None:
        """What was taken stands in the log under its own topic, or was carried again."""
        for record in records:
            self.progress.delivered(CARRIED, record.queue_offset)

    def put_back(self, records: list[Record]) -> None:
        """What was taken could not be written; it goes on waiting."""
        for record in records:
            heappush(self._heap, (due_then_ms(record) or 0, record.queue_offset))

    async def _read(self, items: list[tuple[int, int]]) -> list[Record]:
        queue = self.queue
        found: list[Record] = []
        try:
            for _, offset in items:
                records, _ = await self.store.reader.read_queue(queue, offset, 1) if queue else ([], 0)
                if records:
                    found += records
                else:
                    self.progress.delivered(CARRIED, offset)  # lost to damage, which has been reported
        except OSError:
            for item in items:
                heappush(self._heap, item)
            raise
        return found

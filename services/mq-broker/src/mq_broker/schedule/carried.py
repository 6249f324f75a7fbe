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

_Waiting = tuple[int, int, int]  # due ms, queue offset, log offset


@dataclass
class CarriedMessages:
    """The heap: about 100 bytes a message that waits."""

    store: MessageStore
    progress: DelayProgress
    _heap: list[_Waiting] = field(default_factory=list)
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
                    heappush(self._heap, _waiting(record))
            self._loaded_to += scanned

    async def take_due(self, now_ms: int, count: int) -> list[Record] | None:
        """Up to `count` records that are due, to be delivered now; then `done` or `put_back`.

        None when nothing is due; an empty list when what was due is lost. Raises OSError.
        """
        taken: list[_Waiting] = []
        while self._heap and len(taken) < count and self._heap[0][0] <= now_ms:
            taken.append(heappop(self._heap))
        return await self._read(taken) if taken else None

    async def take_below(self, log_offset: int, count: int) -> list[Record] | None:
        """Up to `count` records that stand below `log_offset` in the log, to be carried again; likewise."""
        below = sorted(item for item in self._heap if item[2] < log_offset)
        taken = set(below[:count])
        self._heap = sorted(item for item in self._heap if item not in taken)  # a sorted list is a heap
        return await self._read(below[:count]) if below else None

    def done(self, records: list[Record]) -> None:
        """What was taken stands in the log under its own topic, or was carried again."""
        for record in records:
            self.progress.delivered(CARRIED, record.queue_offset)

    def put_back(self, records: list[Record]) -> None:
        """What was taken could not be written; it goes on waiting."""
        for record in records:
            heappush(self._heap, _waiting(record))

    async def _read(self, items: list[_Waiting]) -> list[Record]:
        queue = self.queue
        found: list[Record] = []
        try:
            for _, offset, _ in items:
                there = queue is not None and offset >= queue.min_offset
                records, _ = await self.store.reader.read_queue(queue, offset, 1) if queue and there else ([], 0)
                if records:
                    found += records
                else:
                    self.progress.delivered(CARRIED, offset)  # lost to damage, which has been reported
        except OSError:
            for item in items:
                heappush(self._heap, item)
            raise
        return found


def _waiting(record: Record) -> _Waiting:
    return due_then_ms(record) or 0, record.queue_offset, record.log_offset

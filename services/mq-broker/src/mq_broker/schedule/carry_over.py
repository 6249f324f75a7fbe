"""Waiting records whose file of the log has to go are written again at its end, for the timer (ADR 13).

Invariants: what was written again is done in the same step of the event loop, so it is never delivered from both
places; a record that could not be written again waits where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from mq_broker.core.batches import CQ_ENTRY, runs
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delays import DelayProgress
from mq_broker.core.rewrite import promised_queue, waiting_copy
from mq_broker.core.topics import waiting_queue
from mq_broker.schedule.ahead import DELIVER_RECORDS_MAX
from mq_broker.schedule.delivery import IsVoid
from mq_broker.store.consume_queue import ENTRY_SIZE_MAX
from mq_broker.store.message_store import MessageStore
from mqproto.record import Record

ENTRIES_AT_ONCE = 1_024  # looked at before others have their turn: well under a millisecond


@dataclass
class CarryOver:
    """`due_ms` tells when a record of the queue with this number is due."""

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

"""Halves written again: before a check (MISSION T11), and when the file that they stand in has to go.

Invariants: a copy says all that its half said, with its checks counted; a half whose copy the log refuses stays where
it was; what is damaged is put aside and never stops the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from mq_broker.core.batches import Batch
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.halves import half_of, parked_batch, parked_half, recheck_batch
from mq_broker.core.transactions import Half, HalfColumns, Phase, TransactionTable
from mq_broker.store.message_store import MessageStore
from mqproto.names import CHECK_MAX_TIMES_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from mqproto.record import SEGMENT_HEAD, Record, decode_record

log = logging.getLogger(__name__)

SLOTS_AT_ONCE = 1_024  # looked at before others have their turn: well under a millisecond


@dataclass
class HalfCopies:
    """Writes copies and tells the table of them."""

    store: MessageStore
    table: TransactionTable
    time: BrokerTime

    def prepared(self, batch: Batch) -> None:
        """The log has this half message, or this copy of one."""
        record = decode_record(bytes(batch.buffer))
        self.table.prepared(half_of(record, record.queue_offset), self.store.queue_end(OP_HALF_TOPIC, 0))

    def write_again(self, half: Half, record: Record, *, inward: bool = False) -> None:
        """Put a copy of an open half at the log's end. Raises StoreError; then it is where it was."""
        again = recheck_batch(record, half.check_times)
        self.store.put([again], self.time.stamp_ms(), inward=inward)
        self.prepared(again)

    async def carry_over(self, log_offset: int) -> int:
        """Write the halves again that stand below `log_offset`, open or parked; returns how many.

        Raises StoreError, OSError; what was not written again is undecided where it was.
        """
        count = 0
        async for half in self._below(self.table.open, log_offset):
            record = await self._read(half, HALF_TOPIC)
            if record is not None and self.table.open_half(half.transaction_id) == half:
                self.write_again(half, record, inward=True)
                count += 1
        async for half in self._below(self.table.in_parking, log_offset):
            record = await self._read(half, CHECK_MAX_TIMES_TOPIC)
            if record is not None and self.table.in_parking.get(half.transaction_id) == half:
                self._park_again(half, record)
                count += 1
        return count

    async def waiting_below(self, log_offset: int) -> AsyncIterator[tuple[int, int]]:
        """Log offset and size of the halves that `carry_over` would write again. Raises OSError."""
        log_ = self.store.log
        for columns in (self.table.open, self.table.in_parking):
            async for half in self._below(columns, log_offset):
                read = partial(log_.read_if_there, half.log_offset, SEGMENT_HEAD.size)
                head = log_.read_hot(half.log_offset, SEGMENT_HEAD.size) or await self.store.cold_reads.read(read)
                yield half.log_offset, SEGMENT_HEAD.unpack(head)[0] if head else 0

    def _park_again(self, half: Half, record: Record) -> None:
        again = parked_batch(record, half.queue_offset, half.check_times)
        self.store.put([again], self.time.stamp_ms(), inward=True)
        self.table.parked(parked_half(decode_record(bytes(again.buffer))))

    async def _read(self, half: Half, topic: str) -> Record | None:
        """The record of the half; None when it is lost. Raises OSError."""
        try:
            return await self.store.reader.read_record(half.log_offset)
        except ValueError as error:
            log.error("transaction %s is lost: %s", half.transaction_id, error)  # noqa: TRY400
            await self._put_aside(half, topic)
            self.table.closed(half.transaction_id, Phase.ROLLED_BACK)
            return None

    async def _put_aside(self, half: Half, topic: str) -> None:
        """Have the damage quarantined. Raises OSError."""
        queue = self.store.queue(topic, 0)
        if queue is None:
            return
        offset = half.queue_offset
        if topic != HALF_TOPIC:  # a parked half keeps the place of its half, not its own
            offset = await self.store.cold_reads.read(lambda: queue.first_at(half.log_offset, begin=queue.min_offset))
        await self.store.mender.mend(queue, offset)

    async def _below(self, columns: HalfColumns, log_offset: int) -> AsyncIterator[Half]:
        """The halves of the columns whose newest copy stands below `log_offset`."""
        for begin in range(0, columns.slot_count, SLOTS_AT_ONCE):
            for half in columns.below(log_offset, begin, begin + SLOTS_AT_ONCE):
                yield half
            await asyncio.sleep(0)

"""Transactions: half messages wait for their end, and whoever forgets them is asked (MISSION T1-T12).

Invariants: the delivered message stands in the log before the op message that closes its half, in one write, so that no
crash can come between them; an answer to EndTransaction is as durable as any acknowledgement; a half message that no
living producer can answer for stays open.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from mq_broker.core.batches import Batch
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.halves import (
    committed_batch,
    op_batch,
    op_half_offsets,
    op_phase,
    open_half,
    parked_batch,
    recheck_batch,
    transaction_id,
)
from mq_broker.core.topics import TopicTable
from mq_broker.core.transaction_scan import TransactionScan
from mq_broker.core.transactions import (
    OUTCOMES,
    OUTCOMES_REMEMBERED,
    Action,
    OpenHalf,
    Phase,
    TransactionOptions,
    TransactionState,
    TransactionTable,
)
from mq_broker.processor.sessions import Sessions
from mq_broker.store.errors import StoreError, StoreFencedError
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode
from mqproto.names import HALF_TOPIC, OP_HALF_TOPIC
from mqproto.record import Record, decode_record, pack_ip
from osenv import Clock, Rng

log = logging.getLogger(__name__)

REBUILD_RECORDS = 1_024
BORN_IP = pack_ip("127.0.0.1")  # op messages are born here


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer to a request to end a transaction: how it stands now."""

    code: ResponseCode
    remark: str = ""
    outcome: TransactionState = TransactionState.UNKNOW


@dataclass
class Transactions:
    """The processor of half messages."""

    store: MessageStore
    table: TransactionTable
    sessions: Sessions
    topics: TopicTable
    time: BrokerTime
    clock: Clock
    rng: Rng
    options: TransactionOptions

    async def rebuild(self, scan: TransactionScan) -> None:
        """Fill the table from the half and op queues, as far back as an open half can stand."""
        op_low, op_high = self.store.queue_bounds(OP_HALF_TOPIC, 0)
        half_low, _ = self.store.queue_bounds(HALF_TOPIC, 0)
        op_from = max(op_low, min(scan.op, op_high - OUTCOMES_REMEMBERED))
        ended: set[str | int] = set()
        async for record in self._records(OP_HALF_TOPIC, op_from):
            phase = op_phase(record)
            if phase is None:
                ended.update(op_half_offsets(record))
            else:
                ended.add(transaction_id(record))
                self.table.closed(transaction_id(record), phase)
        async for record in self._records(HALF_TOPIC, max(half_low, scan.half)):
            if transaction_id(record) not in ended and record.queue_offset not in ended:
                self.table.prepared(open_half(record, op_from))

    def prepared(self, batch: Batch) -> None:
        """The log has this half message."""
        record = decode_record(bytes(batch.buffer))
        self.table.prepared(open_half(record, self.store.queue_end(OP_HALF_TOPIC, 0)))

    async def end(self, group: str, id_: str, state: TransactionState, *, from_check: bool) -> Ended:
        """Commit, roll back, or hear that the producer does not know."""
        action = self.table.decide(id_, state, from_check=from_check)
        half = self.table.open_half(id_)
        if action is None:
            return Ended(ResponseCode.QUERY_NOT_FOUND, f"no transaction {id_!r} is open or was closed of late")
        if half is not None and half.producer_group != group:
            remark = f"transaction {id_!r} belongs to the producer group {half.producer_group!r}, not to {group!r}"
            return Ended(ResponseCode.MESSAGE_ILLEGAL, remark)
        try:
            if half is not None and action is Action.COUNT_CHECK:
                self.table.counted(id_)
            elif half is not None and action is not Action.NOTHING:
                record = await self.store.reader.read_record(half.log_offset)
                if self.table.open_half(id_) is not half:  # somebody else was here while we read
                    return await self.end(group, id_, state, from_check=from_check)
                self._close(half, record, action, parked=state is TransactionState.UNKNOW)
            await self.store.wait_stored(self.store.log_end)
        except (StoreError, OSError, ValueError) as error:
            return Ended(ResponseCode.SYSTEM_ERROR, str(error))
        phase = self.table.phase(id_)
        return Ended(ResponseCode.SUCCESS, outcome=OUTCOMES.get(phase or Phase.PREPARED, TransactionState.UNKNOW))

    async def carry_over(self, log_offset: int) -> int:
        """Write the halves again that stand below `log_offset` and are open; returns how many.

        Raises StoreError, OSError; what was not written again is open where it was.
        """
        count = 0
        for half in self.table.all_open():
            if half.log_offset < log_offset:
                try:
                    record = await self.store.reader.read_record(half.log_offset)
                except ValueError as error:
                    log.error("transaction %s is lost: %s", half.transaction_id, error)  # noqa: TRY400
                    if (queue := self.store.queue(HALF_TOPIC, 0)) is not None:
                        await self.store.mender.mend(queue, half.queue_offset)  # puts the damage aside
                    self.table.closed(half.transaction_id, Phase.ROLLED_BACK)
                    continue
                if self.table.open_half(half.transaction_id) is half:
                    again = recheck_batch(record, half.check_times)
                    self.store.put([again], self.time.stamp_ms(), inward=True)
                    self.prepared(again)
                    count += 1
        return count

    async def check_forever(self) -> None:
        """Ask for the halves that are open for too long, every interval."""
        while True:
            await self.clock.sleep(self.options.check_interval_ms / 1000)
            for half in self.table.due_for_check(self.time.now_ms(), immunity_ms=self.options.immunity_ms):
                try:
                    await self._check(half)
                except (StoreError, OSError, ValueError) as error:
                    log.warning("transaction %s cannot be checked: %s", half.transaction_id, error)

    async def _check(self, half: OpenHalf) -> None:
        if not self.sessions.members.producer_sessions(half.producer_group):
            return
        record = await self.store.reader.read_record(half.log_offset)
        sessions = self.sessions.members.producer_sessions(half.producer_group)
        if self.table.open_half(half.transaction_id) is not half or not sessions:
            return
        again = recheck_batch(record, half.check_times)
        self.store.put([again], self.time.stamp_ms())
        self.prepared(again)
        message = committed_batch(record)
        self.rng.choice(sessions).check_transaction(half.producer_group, half.transaction_id, bytes(message.buffer))

    def _close(self, half: OpenHalf, record: Record, action: Action, *, parked: bool) -> None:
        """One write: what the half leaves behind, and the op message. Raises StoreError; then it is still open."""
        store_ms = self.time.stamp_ms()
        phase = Phase.COMMITTED if action is Action.COMMIT else Phase.ROLLED_BACK
        batches = [op_batch(half, phase, store_ms=store_ms, born_ip=BORN_IP)]
        if phase is Phase.COMMITTED:
            committed = committed_batch(record)
            self.topics.ensure_for_arrival(committed.topic, committed.queue_id)
            batches.insert(0, committed)
        elif parked:
            log.error("transaction %s: nobody knew in %d checks; parked", half.transaction_id, half.check_times + 1)
            batches.insert(0, parked_batch(record))
        self.store.put(batches, store_ms)
        self.table.closed(half.transaction_id, phase)

    async def _records(self, topic: str, offset: int) -> AsyncIterator[Record]:
        """Every record of queue 0 of the topic from `offset` on."""
        queue = self.store.queue(topic, 0)
        while queue is not None and offset < queue.max_offset:
            records, scanned = await self.store.reader.read_queue(queue, offset, REBUILD_RECORDS)
            for record in records:
                yield record
            if not scanned:
                raise StoreFencedError(f"{topic} ends at {queue.max_offset} and cannot be read from {offset} on")
            offset += scanned

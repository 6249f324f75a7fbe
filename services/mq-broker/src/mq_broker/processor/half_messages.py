"""Half messages: their copies, their checks, and their recovery at a start (mechanisms T8-T12)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

from mq_broker.core.batches import Batch
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.halves import (
    committed_batch,
    half_of,
    is_committed,
    op_half_offsets,
    parked_batch,
    parked_half,
    recheck_batch,
    state_phase,
    transaction_id,
)
from mq_broker.core.members import GroupMembers
from mq_broker.core.transactions import (
    OUTCOMES_REMEMBERED,
    ChecksUnderWay,
    Half,
    HalfColumns,
    Phase,
    TransactionOptions,
    TransactionScan,
    TransactionTable,
)
from mq_broker.processor.sessions import Session
from mq_broker.store.errors import StoreError, StoreFencedError, StoreFullError
from mq_broker.store.message_store import MessageStore
from mqproto.names import CHECK_MAX_TIMES_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from mqproto.record import SEGMENT_HEAD, Record, decode_record
from osenv import Clock, Rng

log = logging.getLogger(__name__)

SLOTS_AT_ONCE = 1_024  # looked at in one step of the event loop: well under a millisecond


@dataclass
class HalfCopies:
    """Writes copies and tells the table of them.

    Invariants: a copy says all that its half said, with its checks counted; a half whose copy the log rejects stays
    where it was; what is damaged is put aside and never stops the others.
    """

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
        await self.store.repairer.repair(queue, offset)

    async def _below(self, columns: HalfColumns, log_offset: int) -> AsyncIterator[Half]:
        """The halves of the columns whose newest copy stands below `log_offset`."""
        for begin in range(0, columns.slot_count, SLOTS_AT_ONCE):
            for half in columns.below(log_offset, begin, begin + SLOTS_AT_ONCE):
                yield half
            await asyncio.sleep(0)


CHECKS_AT_ONCE = 8  # written again and asked for in one step, between frames of producers
PAUSE_S = 2.0  # for members that owe answers to give some, before the round goes on
FAILURES_TOLD = 10  # of one round, each with its transaction; the others are counted


@dataclass
class _Round:
    """One round of checks: what it has left out, and what has failed."""

    number: int
    begin: int  # the first slot
    failures: int = 0
    left_out: int | None = None  # the first slot of the stretch with the first half whose members owe answers

    def failed(self, half: Half, error: Exception) -> None:
        """This half could be asked for only by the next round."""
        self.failures += 1
        if self.failures <= FAILURES_TOLD:
            log.warning("transaction %s cannot be checked: %s", half.transaction_id, error)

    def end(self) -> None:
        """Say what was not said."""
        if self.failures > FAILURES_TOLD:
            log.warning("%d transactions more cannot be checked", self.failures - FAILURES_TOLD)


@dataclass
class TransactionChecks:
    """Transaction checks: active members of the producer group are asked about open half messages, in rounds.

    Mechanisms T8-T12.

    The rounds, and what is under way of them.

    A round visits every open half once. A half is written again, with its checks counted, before it is asked for. A
    member that owes too many answers is passed over, and the round comes back to what it left out until its time is
    over; the next round begins there.

    Invariants: only what the log has taken is asked for; what cannot be read, or written again, is logged and passed
    over, so that a round always advances; producers have their turn every few halves; only the answer of the member
    that was asked, to the newest check and while it is active, counts; a half that no active member can answer for
    stays open.
    """

    store: MessageStore
    table: TransactionTable
    copies: HalfCopies
    members: GroupMembers[Session]
    time: BrokerTime
    clock: Clock
    rng: Rng
    options: TransactionOptions
    under_way: ChecksUnderWay[Session] = field(default_factory=ChecksUnderWay)
    asked: int = field(default=0, init=False)  # checks since the broker was opened
    _rounds: int = 0
    _begin: int = 0  # the slot at which the next round begins

    def is_answered_by_member(self, transaction_id: str, group: str) -> bool:
        """Whether an answer for the transaction would be that of the member that was asked, and that it is still
        active."""
        asked = self.under_way.member(transaction_id)
        return asked is not None and asked in self.members.producer_sessions(group)

    async def run(self) -> None:
        """A round every interval."""
        pause_s = self._interval_s
        while True:
            await self.clock.sleep(pause_s)
            begun = self.clock.monotonic()
            await self.check_all()
            pause_s = max(0.0, self._interval_s - (self.clock.monotonic() - begun))

    async def check_all(self) -> None:
        """One round."""
        self._rounds += 1
        self.under_way.begin_round()
        until = self.clock.monotonic() + self._interval_s
        one = _Round(self._rounds, self._begin)
        try:
            await self._visit(one)
            while one.left_out is not None and self.clock.monotonic() + PAUSE_S < until:
                await self.clock.sleep(PAUSE_S)
                one.begin, one.left_out = one.left_out, None
                await self._visit(one)
        except StoreFullError as error:
            log.warning("no transaction can be checked: %s; the next round tries again", error)
        self._begin = one.left_out or 0
        one.end()

    @property
    def _interval_s(self) -> float:
        return self.options.check_interval_ms / 1_000

    async def _visit(self, one: _Round) -> None:
        """Look at every slot, from the round's beginning on and around. Raises StoreFullError, which ends the round."""
        checked = 0
        count = self.table.open.slot_count
        starts = list(range(0, count, SLOTS_AT_ONCE))
        first = one.begin // SLOTS_AT_ONCE
        for start in starts[first:] + starts[:first]:
            due = self.table.open.due(
                start,
                start + SLOTS_AT_ONCE,
                now_ms=self.time.now_ms(),
                immunity_ms=self.options.immunity_ms,
                check_round=one.number,
                is_there=self.members.has_producers,
            )
            for half in due:
                if not self._ready(half):
                    one.left_out = start if one.left_out is None else one.left_out
                    continue
                try:
                    await self._check(half, one.number)
                except StoreFullError:
                    raise
                except (StoreError, OSError, ValueError) as error:
                    one.failed(half, error)
                checked += 1
                if checked % CHECKS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def _check(self, half: Half, number: int) -> None:
        """Ask for this half. Raises StoreError, OSError, and ValueError for one that is damaged."""
        record = await self.store.reader.read_record(half.log_offset)
        ready = self._ready(half)
        if not ready or self.table.open_half(half.transaction_id) != half:
            return  # ended, or all members have left, while the record was read
        message = committed_batch(record, half.queue_offset)
        self.copies.write_again(half, record)
        member = self.rng.choice(ready)
        self.under_way.asked(half.transaction_id, member)
        self.table.open.asked(half.transaction_id, number)
        self.asked += 1
        member.check_transaction(half.producer_group, half.transaction_id, bytes(message.buffer))

    def _ready(self, half: Half) -> list[Session]:
        """The active members of its group that do not owe too many answers."""
        return self.under_way.ready(self.members.producer_sessions(half.producer_group))


# Which transactions are undecided, told by the queues of the log when a broker starts.
#
# The parking topic says what is parked and what operators have decided, the op queue what has ended, and what the half
# queue has beside is open. Op and half queue are read from where the oldest open half could stand (transactions.py).
#
# Invariants: what was answered before the broker stopped is so again; a message that cannot be read, or that makes no
# sense, is passed over.


RECORDS_AT_ONCE = 1_024


async def rebuild(
    store: MessageStore, table: TransactionTable, scan: TransactionScan, newest: Record | None
) -> Half | None:
    """Fill the table; returns the half whose message `newest` is, of a commit that a crash has cut off behind it.

    Raises StoreFencedError, OSError.
    """
    await _read_parked(store, table)
    op_low, op_high = store.queue_bounds(OP_HALF_TOPIC, 0)
    op_from = max(op_low, min(scan.op, op_high - OUTCOMES_REMEMBERED))
    ended = await _read_ends(store, table, op_from)
    half_low, _ = store.queue_bounds(HALF_TOPIC, 0)
    async for record in _records(store, HALF_TOPIC, max(half_low, scan.half)):
        if transaction_id(record) not in ended and record.queue_offset not in ended:
            try:
                table.prepared(half_of(record, record.queue_offset), op_from)
            except ValueError as error:
                log.warning("%s; it is passed over", error)
    return table.undecided(transaction_id(newest)) if newest is not None and is_committed(newest) else None


async def _read_parked(store: MessageStore, table: TransactionTable) -> None:
    async for record in _records(store, CHECK_MAX_TIMES_TOPIC, store.queue_bounds(CHECK_MAX_TIMES_TOPIC, 0)[0]):
        if (phase := state_phase(record)) is not None:
            table.closed(transaction_id(record), phase)
            continue
        try:
            table.parked(parked_half(record))
        except ValueError as error:
            log.warning("%s; it is passed over", error)


async def _read_ends(store: MessageStore, table: TransactionTable, op_from: int) -> set[str | int]:
    """The halves that have ended, by transaction id, and in RocketMQ's records by queue offset.

    Before there were decisions, a transaction was parked with the phase ROLLED_BACK: what is in the parking topic and
    has only that is undecided, too.
    """
    ended: set[str | int] = set()
    parked: set[str] = set()
    async for record in _records(store, OP_HALF_TOPIC, op_from):
        phase, id_ = state_phase(record), transaction_id(record)
        if phase is None:
            ended.update(op_half_offsets(record))
            continue
        ended.add(id_)
        if phase is Phase.PARKED:
            parked.add(id_)
        elif phase is Phase.COMMITTED or id_ in parked or table.phase(id_) is not Phase.PARKED:
            table.closed(id_, phase)
    for id_ in parked:
        if table.phase(id_) is None:  # what was parked is lost
            table.closed(id_, Phase.ROLLED_BACK)
    return ended


async def _records(store: MessageStore, topic: str, offset: int) -> AsyncIterator[Record]:
    """Every record of queue 0 of the topic from `offset` on."""
    queue = store.queue(topic, 0)
    while queue is not None and offset < queue.max_offset:
        records, scanned = await store.reader.read_queue(queue, offset, RECORDS_AT_ONCE)
        for record in records:
            yield record
        if not scanned:
            raise StoreFencedError(f"{topic} ends at {queue.max_offset} and cannot be read from {offset} on")
        offset += scanned

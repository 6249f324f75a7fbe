"""Which transactions are undecided, told by the queues of the log when a broker starts.

The parking topic says what is parked and what operators have decided, the op queue what has ended, and what the half
queue has beside is open. Op and half queue are read from where the oldest open half could stand (transactions.py).

Invariants: what was answered before the broker stopped is so again; a message that cannot be read, or that makes no
sense, is passed over.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from mq_broker.core.halves import half_of, is_committed, op_half_offsets, parked_half, state_phase, transaction_id
from mq_broker.core.transactions import OUTCOMES_REMEMBERED, Half, Phase, TransactionScan, TransactionTable
from mq_broker.store.errors import StoreFencedError
from mq_broker.store.message_store import MessageStore
from mqproto.names import CHECK_MAX_TIMES_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from mqproto.record import Record

log = logging.getLogger(__name__)

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

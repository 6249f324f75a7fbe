"""Transactions looked at and decided by an operator: the open ones and the parked ones (MISSION T10).

Invariants: nothing is read of a message but when it is shown; to find the oldest of a million never holds producers up;
what a decision answers survives every crash.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from mq_broker.core.halves import committed_batch
from mq_broker.core.limits import RefusedError
from mq_broker.core.rewrite import promised_queue
from mq_broker.core.transactions import Half, HalfColumns, Phase, TransactionState, TransactionTable
from mq_broker.processor.half_copies import SLOTS_AT_ONCE
from mq_broker.processor.querying import QUERY_MESSAGES_DEFAULT, QUERY_MESSAGES_MAX
from mq_broker.processor.refusals import code_of, require_master
from mq_broker.processor.transactions import Transactions, unknown
from mq_broker.store.errors import StoreError
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode
from mqproto.properties import KEY_SEPARATOR, KEYS, decode_properties
from mqproto.record import Record


@dataclass(frozen=True, slots=True)
class Transaction:
    """What is known of one transaction; the meaning of each field stands in admin_service.proto."""

    transaction_id: str
    phase: Phase
    producer_group: str = ""
    topic: str = ""
    store_timestamp_ms: int = 0
    check_times: int = 0
    log_offset: int = 0
    keys: tuple[str, ...] = ()


@dataclass
class TransactionAdministration:
    """The processor of what an operator asks of transactions."""

    store: MessageStore
    table: TransactionTable
    transactions: Transactions

    async def undecided(self, phase: Phase | None, group: str, max_transactions: int) -> tuple[list[Transaction], bool]:
        """The oldest transactions of a phase (None: both) and of a group (empty: all), and whether there are more.

        0 transactions: 32. What cannot be read is listed without topic and keys. Raises RefusedError.
        """
        require_master(self.store)  # a slave knows of open transactions only when it becomes the master
        if not 0 <= max_transactions <= QUERY_MESSAGES_MAX:
            sentence = f"{max_transactions} transactions; allowed are 1 to {QUERY_MESSAGES_MAX}, and 0 for the default"
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
        columns = {Phase.PREPARED: self.table.open, Phase.PARKED: self.table.in_parking}
        if phase is not None and phase not in columns:
            sentence = f"transactions that are {phase.value} are not listed, only those that are prepared or parked"
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
        wanted = max_transactions or QUERY_MESSAGES_DEFAULT
        oldest = await _oldest([of for one, of in columns.items() if phase in (None, one)], group, wanted + 1)
        found = []
        for half in oldest[:wanted]:
            known = self.table.phase(half.transaction_id)
            if known is not None:
                found.append(_transaction(half, known, await self._record(half)))
        return found, len(oldest) > wanted

    async def get(self, id_: str) -> tuple[Transaction, bytes, str]:
        """The transaction, its message as a record under its own topic, and why there is none if so.

        Raises RefusedError for a transaction that is unknown here.
        """
        require_master(self.store)
        half, phase = self.table.undecided(id_), self.table.phase(id_)
        if phase is None:
            raise RefusedError(ResponseCode.QUERY_NOT_FOUND, unknown(id_))
        if half is None:
            return Transaction(id_, phase), b"", ""
        try:
            record = await self.store.reader.read_record(half.log_offset)
            return _transaction(half, phase, record), bytes(committed_batch(record, half.queue_offset).buffer), ""
        except (OSError, ValueError) as error:
            return _transaction(half, phase, None), b"", str(error)

    async def decide(self, id_: str, state: TransactionState) -> Phase:
        """Commit or roll back what is undecided, durably; returns how the transaction has ended, now or before.

        Raises RefusedError.
        """
        require_master(self.store)
        if state is TransactionState.UNKNOW:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, "a decision is COMMIT_MESSAGE or ROLLBACK_MESSAGE")
        try:
            phase = await self.transactions.decide(id_, state)
        except StoreError as error:
            raise RefusedError(code_of(error), str(error)) from error
        except (OSError, ValueError) as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if phase is None:
            raise RefusedError(ResponseCode.QUERY_NOT_FOUND, unknown(id_))
        return phase

    async def _record(self, half: Half) -> Record | None:
        try:
            return await self.store.reader.read_record(half.log_offset)
        except (OSError, ValueError):
            return None


def _transaction(half: Half, phase: Phase, record: Record | None) -> Transaction:
    promised = promised_queue(record) if record else None
    keys = decode_properties(record.properties).get(KEYS, "").split(KEY_SEPARATOR) if record else []
    return Transaction(
        half.transaction_id,
        phase,
        half.producer_group,
        promised[0] if promised else "",
        half.first_store_ms,
        half.check_times,
        half.log_offset,
        tuple(key for key in keys if key),
    )


async def _oldest(columns: Iterable[HalfColumns], group: str, count: int) -> list[Half]:
    """The `count` halves of the group that were stored first; others have their turn in between."""
    oldest: list[Half] = []
    for one in columns:
        for begin in range(0, one.slot_count, SLOTS_AT_ONCE):
            found = (half for half in one.between(begin, begin + SLOTS_AT_ONCE) if group in ("", half.producer_group))
            oldest = heapq.nsmallest(count, chain(oldest, found), key=_age)
            await asyncio.sleep(0)
    return oldest


def _age(half: Half) -> tuple[int, int]:
    return half.first_store_ms, half.log_offset

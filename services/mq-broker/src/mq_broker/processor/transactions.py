"""Transactions: half messages are committed or rolled back by their producer or an operator (mechanisms T1-T12)."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

from mq_broker.core.batches import Batch
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delays import DelayLevels
from mq_broker.core.halves import committed_batch, mark_batch, op_batch, parked_batch, parked_half
from mq_broker.core.life import NO_SPANS, Operation, Spans, Step, note, traced
from mq_broker.core.limits import RejectedError
from mq_broker.core.rewrite import arriving_batch, promised_queue, schedule_batch
from mq_broker.core.topics import TopicTable
from mq_broker.core.transactions import (
    OUTCOMES,
    Action,
    Half,
    HalfColumns,
    Phase,
    TransactionOptions,
    TransactionScan,
    TransactionState,
    TransactionTable,
)
from mq_broker.processor.half_messages import SLOTS_AT_ONCE, HalfCopies, TransactionChecks, rebuild
from mq_broker.processor.querying import QUERY_MESSAGES_DEFAULT, QUERY_MESSAGES_MAX
from mq_broker.processor.sessions import Sessions
from mq_broker.processor.topic_administration import NOT_MASTER, code_of, require_master
from mq_broker.store.errors import StoreError, StoreWriteError
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode
from mqproto.properties import KEY_SEPARATOR, KEYS, decode_properties
from mqproto.record import Record, decode_record, pack_ip
from osenv import Clock, Rng

log = logging.getLogger(__name__)

BORN_IP = pack_ip("127.0.0.1")  # op messages and marks are born here
ENDS = {Action.COMMIT: Phase.COMMITTED, Action.ROLL_BACK: Phase.ROLLED_BACK, Action.PARK: Phase.PARKED}


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer to a request to end a transaction: how it stands now, for its producer."""

    code: ResponseCode
    remark: str = ""
    outcome: TransactionState = TransactionState.UNKNOW


@dataclass
class Transactions:
    """The processor of half messages.

    Invariants: what a transaction leaves behind is one write, in this order: the message that is delivered, waits for
    its delay, or is parked; the op message; the mark of an operator's decision about a parked one. An answer is as
    durable as any acknowledgement. Of two concurrent requests to end a transaction one ends it.
    """

    store: MessageStore
    table: TransactionTable
    sessions: Sessions
    topics: TopicTable
    levels: DelayLevels
    time: BrokerTime
    clock: Clock
    rng: Rng
    options: TransactionOptions
    spans: Spans = NO_SPANS

    def __post_init__(self) -> None:
        self.copies = HalfCopies(self.store, self.table, self.time)
        self.checks = TransactionChecks(
            self.store,
            self.table,
            self.copies,
            self.sessions.members,
            self.time,
            self.clock,
            self.rng,
            self.options,
        )

    def reconfigure(self, options: TransactionOptions) -> None:
        """Follow other options from now on."""
        self.options = self.checks.options = options
        self.table.check_times_max = options.check_times_max

    async def rebuild(self, scan: TransactionScan, newest: Record | None) -> None:
        """Fill the table at start; `newest` is the last record that recovery has read again.

        The message of a commit may be the last thing that a crash has left of its write: then the transaction is
        committed, and its op message follows now. Raises StoreFencedError, OSError.
        """
        half = await rebuild(self.store, self.table, scan, newest)
        if half is None:
            return
        log.warning("transaction %s was being committed when the broker died: it is committed", half.transaction_id)
        store_ms = self.time.stamp_ms()
        try:
            self.store.put(self._closing(half, Phase.COMMITTED, store_ms), store_ms, inward=True)
        except StoreWriteError as error:  # what was found is so all the same
            log.error("the op message of transaction %s is missing: %s", half.transaction_id, error)  # noqa: TRY400
        self.table.closed(half.transaction_id, Phase.COMMITTED)

    async def end(self, group: str, id_: str, state: TransactionState, *, from_check: bool) -> Ended:
        """A producer's decision: commit, roll back, or unknown."""
        if self.store.follows:
            return Ended(ResponseCode.NOT_LEADER_FOR_QUEUE, NOT_MASTER)
        half = self.table.undecided(id_)
        if self.table.phase(id_) is None:
            return Ended(ResponseCode.QUERY_NOT_FOUND, unknown(id_))
        if half is not None and half.producer_group != group:
            remark = f"transaction {id_!r} belongs to the producer group {half.producer_group!r}, not to {group!r}"
            return Ended(ResponseCode.MESSAGE_ILLEGAL, remark)

        def decide() -> Action | None:
            answers_check = from_check and self.checks.is_answered_by_member(id_, group)
            return self.table.decide(id_, state, answers_check=answers_check)

        try:
            phase = await self._carry_out(id_, decide)
        except StoreError as error:
            return Ended(code_of(error), str(error))
        except (OSError, ValueError) as error:
            return Ended(ResponseCode.SYSTEM_ERROR, str(error))
        return Ended(ResponseCode.SUCCESS, outcome=OUTCOMES[phase or Phase.PREPARED])

    async def decide(self, id_: str, state: TransactionState) -> Phase | None:
        """An operator's decision; returns how the transaction stands now, None when it is unknown here.

        Raises StoreError, OSError, and ValueError for a half that cannot be read; then nothing has changed.
        """
        return await self._carry_out(id_, lambda: self.table.decide_by_operator(id_, state))

    async def _carry_out(self, id_: str, decide: Callable[[], Action | None]) -> Phase | None:
        """Do what `decide` says, and ask it anew when the transaction has changed meanwhile. Durable on return."""
        while True:
            half, action = self.table.undecided(id_), decide()
            if half is None or action is None or action is Action.NOTHING:
                break
            if action is Action.COUNT_CHECK:
                self.table.counted(id_)
                self.checks.under_way.ended(id_)
                break
            record = await self._record(half, action)
            if self.table.undecided(id_) == half:
                self._close(half, action, record)
                break
        phase = self.table.phase(id_)
        await self.store.wait_acknowledged()
        return phase

    async def _record(self, half: Half, action: Action) -> Record | None:
        """The half message as it stands in the log; for a roll back only its span needs it, if it can be read.

        Raises OSError, ValueError.
        """
        if action is Action.ROLL_BACK and not self.spans.is_on:
            return None
        try:
            return await self.store.reader.read_record(half.log_offset)
        except (OSError, ValueError) as error:
            if action is not Action.ROLL_BACK:
                raise
            log.info("transaction %s is rolled back without a span: %s", half.transaction_id, error)
            return None

    def _close(self, half: Half, action: Action, record: Record | None) -> None:
        """One write. Raises StoreError, ValueError; then nothing has changed. `record` may lack for a roll back."""
        store_ms, phase = self.time.stamp_ms(), ENDS[action]
        batches = self._closing(half, phase, store_ms)
        if record is not None and phase is not Phase.ROLLED_BACK:
            batches.insert(0, self._left_behind(half, record, phase, store_ms))
        step = _step(half, phase, store_ms)
        with traced(self.spans, [(batches[0], step)] if phase is Phase.COMMITTED else []):
            self.store.put(batches, store_ms)
        if record is not None and phase is Phase.ROLLED_BACK:
            note(self.spans, record, step)
        self.checks.under_way.ended(half.transaction_id)
        if phase is Phase.PARKED:
            log.error(
                "transaction %s: parked after %d checks without an answer",
                half.transaction_id,
                half.check_times + 1,
                extra={"transaction_id": half.transaction_id, "producer_group": half.producer_group},
            )
            self.table.parked(parked_half(decode_record(bytes(batches[0].buffer))))
        else:
            self.table.closed(half.transaction_id, phase)

    def _closing(self, half: Half, phase: Phase, store_ms: int) -> list[Batch]:
        """The records that note the transaction's new state in the log."""
        batches = [op_batch(half, phase, store_ms=store_ms, born_ip=BORN_IP)]
        if half.transaction_id in self.table.in_parking:
            batches.append(mark_batch(half, phase, store_ms=store_ms, born_ip=BORN_IP))
        return batches

    def _left_behind(self, half: Half, record: Record, phase: Phase, store_ms: int) -> Batch:
        """The message, on its way to its topic, to its wait, or to the parking topic."""
        if phase is Phase.PARKED:
            return parked_batch(record, half.queue_offset, half.check_times + 1)
        message = arriving_batch(committed_batch(record, half.queue_offset), self.topics)
        return (
            schedule_batch(message, self.levels, store_ms, self.time.ahead_of_wall_ms) if message.delayed else message
        )


def unknown(transaction_id: str) -> str:
    """The sentence about a transaction that this broker does not know."""
    return f"no transaction {transaction_id!r} is open or was closed of late"


def _step(half: Half, phase: Phase, now_ms: int) -> Step:
    return Step(
        Operation.HALF,
        half.first_store_ms,
        now_ms,
        checks=half.check_times,
        outcome=phase.value,
        producer_group=half.producer_group,
    )


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
    """Transactions looked at and decided by an operator: the open ones and the parked ones (mechanism T10).

    The processor of what an operator asks of transactions.

    Invariants: nothing is read of a message but when it is shown; to find the oldest of a million never holds producers
    up; what a decision answers survives every crash.
    """

    store: MessageStore
    table: TransactionTable
    transactions: Transactions

    async def undecided(self, phase: Phase | None, group: str, max_transactions: int) -> tuple[list[Transaction], bool]:
        """The oldest transactions of a phase (None: both) and of a group (empty: all), and whether there are more.

        0 transactions: 32. What cannot be read is listed without topic and keys. Raises RejectedError.
        """
        require_master(self.store)  # a replica knows of open transactions only when it becomes the master
        if not 0 <= max_transactions <= QUERY_MESSAGES_MAX:
            sentence = f"{max_transactions} transactions; allowed are 1 to {QUERY_MESSAGES_MAX}, and 0 for the default"
            raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
        columns = {Phase.PREPARED: self.table.open, Phase.PARKED: self.table.in_parking}
        if phase is not None and phase not in columns:
            sentence = f"transactions that are {phase.value} are not listed, only those that are prepared or parked"
            raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
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

        Raises RejectedError for a transaction that is unknown here.
        """
        require_master(self.store)
        half, phase = self.table.undecided(id_), self.table.phase(id_)
        if phase is None:
            raise RejectedError(ResponseCode.QUERY_NOT_FOUND, unknown(id_))
        if half is None:
            return Transaction(id_, phase), b"", ""
        try:
            record = await self.store.reader.read_record(half.log_offset)
            return _transaction(half, phase, record), bytes(committed_batch(record, half.queue_offset).buffer), ""
        except (OSError, ValueError) as error:
            return _transaction(half, phase, None), b"", str(error)

    async def decide(self, id_: str, state: TransactionState) -> Phase:
        """Commit or roll back what is undecided, durably; returns how the transaction has ended, now or before.

        Raises RejectedError.
        """
        require_master(self.store)
        if state is TransactionState.UNKNOW:
            raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, "a decision is COMMIT_MESSAGE or ROLLBACK_MESSAGE")
        try:
            phase = await self.transactions.decide(id_, state)
        except StoreError as error:
            raise RejectedError(code_of(error), str(error)) from error
        except (OSError, ValueError) as error:
            raise RejectedError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if phase is None:
            raise RejectedError(ResponseCode.QUERY_NOT_FOUND, unknown(id_))
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

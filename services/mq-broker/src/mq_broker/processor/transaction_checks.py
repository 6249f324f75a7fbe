"""Whoever forgets a half message is asked: living members of its producer group, again and again (MISSION T8-T12).

A round visits every open half once. A half is written again, with its checks counted, before it is asked for. A member
that owes too many answers is passed over, and the round comes back to what it left out until its time is over; the next
round begins there.

Invariants: only what the log has taken is asked for; what cannot be read, or written again, is logged and passed over,
so that a round always advances; producers have their turn every few halves; only the answer to the newest check that
the member asked, still living, gives counts as one; a half that no living member can answer for stays open.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.halves import committed_batch
from mq_broker.core.members import GroupMembers
from mq_broker.core.transactions import ChecksUnderWay, Half, TransactionOptions, TransactionTable
from mq_broker.processor.half_copies import SLOTS_AT_ONCE, HalfCopies
from mq_broker.processor.sessions import Session
from mq_broker.store.errors import StoreError, StoreFullError
from mq_broker.store.message_store import MessageStore
from osenv import Clock, Rng

log = logging.getLogger(__name__)

CHECKS_AT_ONCE = 8  # written again and asked for before producers have their turn
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
    """The rounds, and what is under way of them."""

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
        """Whether an answer for the transaction would be that of the member that was asked, and that it still lives."""
        asked = self.under_way.whom(transaction_id)
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
        """Look at every slot, from the round's beginning on and around. Raises StoreFullError, which is everybody's."""
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
            return  # ended, or everybody has gone, while we read
        message = committed_batch(record, half.queue_offset)
        self.copies.write_again(half, record)
        member = self.rng.choice(ready)
        self.under_way.asked(half.transaction_id, member)
        self.table.open.asked(half.transaction_id, number)
        self.asked += 1
        member.check_transaction(half.producer_group, half.transaction_id, bytes(message.buffer))

    def _ready(self, half: Half) -> list[Session]:
        """The living members of its group that do not owe too many answers."""
        return self.under_way.ready(self.members.producer_sessions(half.producer_group))

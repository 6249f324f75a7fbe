"""Orderly groups across a change of masters: the holder of a queue goes on with it, and no other member begins (ADR
111)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from mq_broker.core.limits import RejectedError
from mq_broker.core.members import LOCK_EXPIRY_MS, LockedQueue, QueueLocks
from mq_broker.core.replica_state import BrokerRole
from mq_broker.core.topics import TopicConfig
from mq_broker.testing import RecordingSession, client
from mq_broker.testing_replication import Member, Network, pair, until
from osenv import SimClock

T = TypeVar("T")

Q0, Q1 = (LockedQueue("t", number) for number in range(2))
EXPIRY_S = LOCK_EXPIRY_MS / 1_000


async def result_of(clock: SimClock, call: Coroutine[Any, Any, T]) -> T:
    """What the call returns or raises after a while."""
    task = asyncio.ensure_future(call)
    await until(clock, task.done)
    return task.result()


async def group_at(clock: SimClock, member: Member) -> None:
    """The members a and b of the group g are connected with this broker, which has the topic t."""
    broker = member.at_work
    if broker.topics.get("t") is None:
        await result_of(clock, broker.topic_administration.update(TopicConfig("t", 2, 2)))
    for client_id in ("a", "b"):
        broker.sessions.heartbeat(RecordingSession(), client(client_id, "g"))


async def lock(clock: SimClock, member: Member, client_id: str, *queues: LockedQueue) -> list[LockedQueue]:
    return await result_of(clock, member.at_work.queue_locking.lock("g", client_id, queues))


async def switched(clock: SimClock, old: Member, new: Member, *, hands_over: bool = True) -> None:
    """`new` is the master, and `old` its replica, as an operator switches them."""
    epoch = old.at_work.replication.epoch
    log_end, role = await result_of(clock, old.at_work.replication.step_down(epoch))
    left = old.at_work.queue_locking.handed_over() if hands_over else b""
    await until(clock, lambda: new.at_work.store.log_end == log_end)
    await result_of(clock, new.at_work.replication.promote(epoch.term + 1, log_end, role, epoch, queue_locks=left))
    await until(clock, lambda: new.broker is not None and new.at_work.is_master)
    await result_of(clock, old.at_work.replication.become_replica(1, new.name, new.at_work.replication.epoch))
    await until(clock, lambda: old.broker is not None and old.at_work.replication.is_connected)


async def promoted_by_force(clock: SimClock, network: Network, master: Member, replica: Member) -> None:
    network.cut(master)
    term = replica.at_work.replication.epoch.term
    await result_of(clock, replica.at_work.replication.promote(term + 1, 0, BrokerRole.ASYNC_MASTER))
    await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)


async def test_members_go_on_with_their_queues_at_once_after_a_switch() -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, replica):
        await group_at(clock, master)
        assert await lock(clock, master, "a", Q0) == [Q0]
        await switched(clock, master, replica)
        await group_at(clock, replica)
        assert await lock(clock, replica, "b", Q0, Q1) == [Q1], "Q0 is a's, and Q1 is known to be free"
        assert await lock(clock, replica, "a", Q0, Q1) == [Q0]
        await switched(clock, replica, master)
        await group_at(clock, master)
        assert await lock(clock, master, "b", Q0, Q1) == [Q1]
        assert await lock(clock, master, "a", Q0, Q1) == [Q0]


async def test_a_lock_handed_over_lasts_60_s_from_the_promotion_and_survives_restarts() -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, replica):
        await group_at(clock, master)
        await lock(clock, master, "a", Q0)
        await switched(clock, master, replica)
        await replica.stop(clean=False)
        await replica.start()
        await group_at(clock, replica)
        assert await lock(clock, replica, "b", Q0, Q1) == [Q1]
        await clock.advance(EXPIRY_S)
        assert await lock(clock, replica, "b", Q0) == [Q0], "a is gone"


async def test_a_switch_that_is_given_up_leaves_the_locks_as_they_were() -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, _replica):
        await group_at(clock, master)
        await lock(clock, master, "a", Q0)
        replication = master.at_work.replication
        log_end, role = await result_of(clock, replication.step_down(replication.epoch))
        left = master.at_work.queue_locking.handed_over()
        await result_of(clock, replication.promote(2, log_end, role, replication.epoch, queue_locks=left))
        await until(clock, lambda: master.broker is not None and master.at_work.replication.epoch.term == 2)
        await group_at(clock, master)
        assert await lock(clock, master, "b", Q0, Q1) == [Q1]


@pytest.mark.parametrize("forced", [True, False], ids=["the master is lost", "an operator's tool of before"])
async def test_without_the_table_of_the_old_master_no_member_gets_a_queue_for_60_s(forced: bool) -> None:
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        await group_at(clock, master)
        await lock(clock, master, "a", Q0)
        if forced:
            await promoted_by_force(clock, network, master, replica)
        else:
            await switched(clock, master, replica, hands_over=False)
        await group_at(clock, replica)
        assert await lock(clock, replica, "b", Q0, Q1) == []
        await clock.advance(EXPIRY_S)
        assert await lock(clock, replica, "b", Q0, Q1) == [Q0, Q1]


async def test_a_table_of_an_earlier_term_counts_for_nothing_when_its_broker_is_promoted_again() -> None:
    """It has stepped down, was never told to follow, and its successor has lent queues since."""
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        await group_at(clock, master)
        old = master.at_work.replication
        log_end, role = await result_of(clock, old.step_down(old.epoch))
        left = master.at_work.queue_locking.handed_over()
        await until(clock, lambda: replica.at_work.store.log_end == log_end)
        network.cut(replica)
        await result_of(clock, replica.at_work.replication.promote(2, log_end, role, old.epoch, queue_locks=left))
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        await group_at(clock, replica)
        assert await lock(clock, replica, "a", Q0) == [Q0]
        await result_of(clock, old.promote(3, 0, role))
        await until(clock, lambda: master.broker is not None and master.at_work.replication.epoch.term == 3)
        await group_at(clock, master)
        assert await lock(clock, master, "b", Q0) == []


@pytest.mark.parametrize("left", [b"x", b'{"holderTable": 1}', b"[]"])
async def test_a_table_that_makes_no_sense_is_rejected_and_nothing_changes(left: bytes) -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, replica):
        epoch = master.at_work.replication.epoch
        log_end, role = await result_of(clock, master.at_work.replication.step_down(epoch))
        with pytest.raises(RejectedError, match="queue_locks is not what a master that steps down answers"):
            await result_of(clock, replica.at_work.replication.promote(2, log_end, role, epoch, queue_locks=left))
        assert not replica.at_work.is_master


@dataclass
class Table:
    """A broker's: `locks` in memory, `document` on disk, `term` in which the broker was opened."""

    locks: QueueLocks = field(default_factory=QueueLocks)
    document: dict[str, Any] | None = None
    term: int = 1

    def open(self, now_ms: int, term: int, *, follows: bool) -> None:
        """As a broker that starts."""
        self.locks, self.term = QueueLocks(), term
        if self.document is not None:
            self.locks.load_json(self.document)
        self.locks.begin(now_ms, lost=follows, term=term)
        self.persist()

    def persist(self) -> None:
        self.document = self.locks.to_json()


class History:
    """Two brokers, three members that hold a queue for 30 s after they last asked with success, and any switches."""

    def __init__(self, seed: int) -> None:
        self.rng, self.counts = random.Random(seed), Counter[str]()
        self.now_ms, self.term = 0, 1
        self.tables = [Table(), Table()]
        self.master: int | None = 0
        self.left: dict[str, Any] | None = None  # the table of the last one that has stepped down
        self.listens_until: dict[str, int] = dict.fromkeys("abc", 0)
        self.tables[0].open(0, 1, follows=False)
        self.tables[1].open(0, 1, follows=True)

    def run(self, steps: int) -> None:
        acts = (*[self.ask] * 12, self.give_back, self.step_down, self.promote, self.restart)
        for _ in range(steps):
            self.now_ms += self.rng.choice((0, 500, 5_000, 5_000, 20_000))
            self.rng.choice(acts)()

    def ask(self) -> None:
        if self.master is None:
            return
        table, member = self.tables[self.master], self.rng.choice("abc")
        held = table.locks.lock("g", member, [Q0], self.now_ms)
        table.persist()
        self.counts["granted" if held else "rejected"] += 1
        if held:
            others = [one for one, until_ms in self.listens_until.items() if one != member and until_ms > self.now_ms]
            assert not others, f"{member} gets the queue while {others} may listen"
            self.listens_until[member] = self.now_ms + 30_000

    def give_back(self) -> None:
        member = self.rng.choice("abc")
        self.listens_until[member] = self.now_ms
        if self.master is not None:
            self.tables[self.master].locks.unlock("g", member, [Q0])

    def step_down(self) -> None:
        if self.master is not None:
            self.left = self.tables[self.master].locks.document(self.now_ms)
            self.master = None

    def promote(self) -> None:
        """The one or the other, by what was handed over, now or long ago, by force, or because broker.conf says so."""
        new, before = self.rng.randrange(2), self.term
        table, how = self.tables[new], self.rng.choice(("handed over", "handed over", "by force", "by configuration"))
        self.term += 1
        if how != "by configuration":
            table.locks.succeed(self.left if how == "handed over" else None, before, self.term)
            table.persist()
        table.open(self.now_ms, self.term, follows=False)
        self.counts[how] += 1
        if self.rng.random() < 0.7:
            self.tables[1 - new].open(self.now_ms, self.term, follows=True)
        self.master = new

    def restart(self) -> None:
        number = self.rng.randrange(2)
        table = self.tables[number]
        table.open(self.now_ms, self.term if number == self.master else table.term, follows=number != self.master)


@pytest.mark.parametrize("seed", range(40))
def test_no_two_members_listen_to_a_queue_whatever_masters_come_and_go(seed: int) -> None:
    history = History(seed)
    history.run(2_000)
    assert min(history.counts[what] for what in ("granted", "rejected", "handed over", "by force"))

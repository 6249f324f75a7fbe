"""Restored stores and replicas: what members report of numbers that were given again never counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.replica_state import BrokerRole, ReplicaState
from mq_broker.processor.backup import BackupPart
from mq_broker.replication.feed import ACCEPTED_S
from mq_broker.testing import copied, restored
from mq_broker.testing_replication import Member, Network, make_pair, send, until
from osenv import SimClock

ROLE = BrokerRole.ASYNC_MASTER


@dataclass
class BackedUp:
    """A pair whose master is gone; the replica has never run. The copy has one message, of which `g` finished none."""

    clock: SimClock
    network: Network
    master: Member
    replica: Member
    parts: Sequence[BackupPart]
    report: Progress  # of a member that has finished two messages that came after the copy

    def again(self, member: Member, draw: int) -> Member:
        """This member with the store that was put back; what it draws depends on `draw`."""
        options = replace(member.options, is_registered=True)
        put_back = replace(member, options=options, disk=restored(self.parts), broker=None, opened=draw)
        self.network.members[member.name] = put_back
        return put_back

    async def promote(self, member: Member, term: int) -> None:
        """An operator has made it the master of this term."""
        await member.at_work.replication.promote(term, 0, ROLE)
        await until(self.clock, lambda: member.broker is not None and member.at_work.replication.epoch.term == term)

    async def offset_after(self, member: Member, report: Progress) -> int:
        """Where `g` goes on after two new messages with the numbers of which a member has reported others."""
        await send(self.clock, member, b"new", b"new")
        member.at_work.offsets.commit("g", [("t", 0, report)])
        known = member.at_work.offsets.query("g", "t", 0)
        assert known is not None
        return known.offset


@asynccontextmanager
async def backed_up() -> AsyncIterator[BackedUp]:
    """All members are stopped afterwards."""
    clock = SimClock()
    network, master, replica = make_pair(clock, role=ROLE)
    await master.start()
    await send(clock, master, b"before")
    version = master.at_work.consumer_offsets.begin("g", "t", 0, 0).version
    parts = await copied(master.at_work)
    await master.stop(clean=False)
    try:
        yield BackedUp(clock, network, master, replica, parts, Progress(3, (), version))
    finally:
        for member in network.members.values():
            if member.broker is not None:
                await member.stop()


async def test_a_store_that_was_put_back_as_a_replica_and_is_promoted_counts_no_report_from_before() -> None:
    async with backed_up() as pair:
        replica = pair.again(pair.replica, draw=1)
        await replica.start()
        await replica.stop(clean=False)  # what it has drawn is on its disk
        await replica.start()
        await pair.promote(replica, 1)
        assert await pair.offset_after(replica, pair.report) == 0


async def test_a_replica_of_a_master_that_was_restored_twice_counts_no_report_of_what_it_lacks() -> None:
    async with backed_up() as pair:
        drawn: dict[int, int] = {}
        for draw in range(1, 5):
            master = pair.again(pair.master, draw)
            await master.start()
            drawn[master.at_work.consumer_offsets.renewals] = draw
            await master.stop(clean=False)
        first = pair.again(pair.master, drawn[max(drawn)])
        await first.start()
        await first.at_work.replication.accepted()
        await pair.clock.advance(ACCEPTED_S)
        await first.at_work.replication.accepted()
        await pair.replica.start()
        await until(pair.clock, lambda: pair.replica.at_work.store.log_end == first.at_work.store.log_end > 0)
        await first.stop(clean=False)

        second = pair.again(pair.master, drawn[min(drawn)])
        await second.start()
        await pair.promote(second, 2)
        await until(pair.clock, lambda: second.at_work.replication.status().in_sync_replicas == 2)
        await pair.clock.advance(1)
        pair.network.cut(pair.replica)
        await send(pair.clock, second, b"lost", b"lost")
        known = second.at_work.offsets.query("g", "t", 0)
        assert known is not None
        second.at_work.offsets.commit("g", [("t", 0, report := Progress(3, (), known.version))])
        await second.stop(clean=False)
        await pair.promote(pair.replica, 3)
        assert await pair.offset_after(pair.replica, report) == 0


def test_a_replica_keeps_the_higher_origin() -> None:
    state = ReplicaState("id", BrokerRole.SLAVE, BrokerRole.SLAVE, 1, renewal_origin=700, is_restored=True)
    for told, kept in ((0, 700), (500, 700), (900, 900)):  # 0: by a master of an earlier version
        followed = state.following(state.epoch, "master", state.history, told)
        assert (followed.renewal_origin, followed.is_restored) == (kept, False)

"""Offsets of groups at a running pair: what a slave was told while its master was away stays (issue 8, point 4)."""

from __future__ import annotations

from mq_broker.core.consumer_offsets import RENEWALS_PER_TERM
from mq_broker.core.progress import Progress, version_of
from mq_broker.core.replication.roles import BrokerRole
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import incoming, produce
from mq_broker.testing_replication import make_pair
from osenv import SimClock


async def test_commits_at_the_slave_survive_the_return_of_a_master_that_was_killed() -> None:
    clock = SimClock()
    _, master, slave = make_pair(clock, role=BrokerRole.ASYNC_MASTER, flush=FlushDiskType.ASYNC_FLUSH)
    await master.start()
    await slave.start()
    await produce(master.at_work, incoming("t", [b"%d" % number for number in range(6)]))
    master.at_work.offsets.commit("g", [("t", 0, Progress(2))])
    await clock.advance(3)
    assert slave.at_work.offsets.query("g", "t", 0) == Progress(2)
    await master.stop(clean=False)
    slave.at_work.offsets.commit("g", [("t", 0, Progress(5))])
    await clock.advance(1)
    await master.start()
    await clock.advance(5)
    assert master.at_work.offsets.query("g", "t", 0) == slave.at_work.offsets.query("g", "t", 0) == Progress(5)
    for member in (slave, master):
        await member.stop()


async def test_who_takes_over_asks_members_anew_and_keeps_what_they_have_finished() -> None:
    """The old master may have given numbers to messages that the new one has not got, and gives again."""
    clock = SimClock()
    _, master, slave = make_pair(clock, role=BrokerRole.ASYNC_MASTER)
    await master.start()
    await slave.start()
    await produce(master.at_work, incoming("t", [b"%d" % number for number in range(6)]))
    master.at_work.offsets.commit("g", [("t", 0, Progress(2))])
    await clock.advance(3)
    await master.stop(clean=False)
    await slave.at_work.replication.promote(2, 0, BrokerRole.ASYNC_MASTER)
    await clock.advance(1)
    promoted = slave.at_work
    assert promoted.offsets.query("g", "t", 0) == Progress(2, (), version_of(RENEWALS_PER_TERM, 0))
    await produce(promoted, incoming("t", [b"new"]))
    assert "left out" in promoted.offsets.commit("g", [("t", 0, Progress(7))])
    await slave.stop()

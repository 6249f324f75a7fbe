"""Offsets of groups at a running pair: what a replica was told while its master was away stays (mechanism H4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mq_broker.core.consumer_offsets import RENEWALS_PER_TERM, RESETS_PER_TERM, Progress, version_of
from mq_broker.core.replica_state import BrokerRole
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import LOG_FILE_BYTES, incoming, produce
from mq_broker.testing_replication import Member, Network, hold_log, make_pair, pair, result_of, send, until
from osenv import SeededRng, SimClock


class Nothing(SeededRng):
    """Of what was not synced nothing survives a power cut."""

    def randrange(self, start: int, stop: int) -> int:  # type: ignore[override]
        return start


async def lose_power(clock: SimClock, member: Member) -> None:
    await result_of(clock, member.stop(clean=False))
    member.disk.crash(Nothing(0))


async def test_commits_at_the_replica_survive_the_return_of_a_master_that_was_killed() -> None:
    clock = SimClock()
    _, master, replica = make_pair(clock, role=BrokerRole.ASYNC_MASTER, flush=FlushDiskType.ASYNC_FLUSH)
    await master.start()
    await replica.start()
    await produce(master.at_work, incoming("t", [b"%d" % number for number in range(6)]))
    master.at_work.offsets.commit("g", [("t", 0, Progress(2))])
    await clock.advance(3)
    assert replica.at_work.offsets.query("g", "t", 0) == Progress(2)
    await master.stop(clean=False)
    replica.at_work.offsets.commit("g", [("t", 0, Progress(5))])
    await clock.advance(1)
    await master.start()
    await clock.advance(5)
    assert master.at_work.offsets.query("g", "t", 0) == replica.at_work.offsets.query("g", "t", 0) == Progress(5)
    for member in (replica, master):
        await member.stop()


async def test_who_takes_over_asks_members_anew_and_keeps_what_they_have_finished() -> None:
    """The old master may have given numbers to messages that the new one has not got, and gives again."""
    clock = SimClock()
    _, master, replica = make_pair(clock, role=BrokerRole.ASYNC_MASTER)
    await master.start()
    await replica.start()
    await produce(master.at_work, incoming("t", [b"%d" % number for number in range(6)]))
    master.at_work.offsets.commit("g", [("t", 0, Progress(2))])
    await clock.advance(3)
    await master.stop(clean=False)
    await replica.at_work.replication.promote(2, 0, BrokerRole.ASYNC_MASTER)
    await clock.advance(1)
    promoted = replica.at_work
    assert promoted.offsets.query("g", "t", 0) == Progress(2, (), version_of(RENEWALS_PER_TERM, RESETS_PER_TERM))
    await produce(promoted, incoming("t", [b"new"]))
    assert "left out" in promoted.offsets.commit("g", [("t", 0, Progress(7))])
    await replica.stop()


async def test_a_replica_whose_machine_died_does_not_have_members_of_its_master_ask_anew() -> None:
    """Its master lacks nothing, and gives no number again."""
    clock = SimClock()
    _, master, replica = make_pair(clock, role=BrokerRole.ASYNC_MASTER, flush=FlushDiskType.ASYNC_FLUSH)
    await master.start()
    await replica.start()
    await produce(master.at_work, incoming("t", [b"%d" % number for number in range(6)]))
    master.at_work.offsets.commit("g", [("t", 0, Progress(2))])
    await clock.advance(3)
    await lose_power(clock, replica)
    await clock.advance(1)
    await replica.start()
    await clock.advance(5)
    assert replica.at_work.replication.is_connected
    assert master.at_work.offsets.commit("g", [("t", 0, Progress(4))]) == ""
    await clock.advance(1)
    assert master.at_work.offsets.query("g", "t", 0) == replica.at_work.offsets.query("g", "t", 0) == Progress(4)
    for member in (replica, master):
        await result_of(clock, member.stop())


async def test_a_replica_whose_machine_died_has_members_ask_anew_when_it_is_promoted() -> None:
    """What its master had and it has not is lost, and the numbers are given again."""
    clock = SimClock()
    _, master, replica = make_pair(clock, role=BrokerRole.ASYNC_MASTER, flush=FlushDiskType.ASYNC_FLUSH)
    await master.start()
    await replica.start()
    await produce(master.at_work, incoming("t", [b"%d" % number for number in range(6)]))
    master.at_work.offsets.commit("g", [("t", 0, Progress(2))])
    await clock.advance(3)
    await lose_power(clock, replica)
    await produce(master.at_work, incoming("t", [b"lost"]))
    await result_of(clock, master.stop(clean=False))
    await replica.start()
    await replica.at_work.replication.promote(2, 0, BrokerRole.ASYNC_MASTER)
    await clock.advance(1)
    await produce(replica.at_work, incoming("t", [b"new"]))
    assert "left out" in replica.at_work.offsets.commit("g", [("t", 0, Progress(7))])
    assert replica.at_work.offsets.query("g", "t", 0) == Progress(2, (), version_of(RENEWALS_PER_TERM, RESETS_PER_TERM))
    await replica.stop()


async def test_a_replica_that_follows_a_master_whose_machine_died_has_its_versions_before_its_bytes() -> None:
    """Both lost their power: reports of the lost numbers, to either, are left out."""
    clock = SimClock()
    _, master, replica = make_pair(clock, role=BrokerRole.ASYNC_MASTER, flush=FlushDiskType.ASYNC_FLUSH)
    await master.start()
    await replica.start()
    await produce(master.at_work, incoming("t", [b"%d" % number for number in range(6)]))
    master.at_work.offsets.commit("g", [("t", 0, Progress(2))])
    await clock.advance(3)
    await produce(master.at_work, incoming("t", [b"lost"]))
    await master.stop(clean=False)
    master.disk.crash(Nothing(0))
    await lose_power(clock, replica)
    await master.start()
    await produce(master.at_work, incoming("t", [b"new"]))
    await replica.start()
    await clock.advance(5)
    for member in (replica, master):
        assert member.at_work.store.queue_end("t", 0) == 7
        assert "left out" in member.at_work.offsets.commit("g", [("t", 0, Progress(7))])
        assert member.at_work.offsets.query("g", "t", 0) == Progress(2, (), version_of(1, 0))
    for member in (replica, master):
        await result_of(clock, member.stop())


@pytest.mark.parametrize("power_is_lost", [False, True])
async def test_a_replica_that_has_just_joined_after_retention_gives_no_number_again(power_is_lost: bool) -> None:
    """It is promoted with the beginning of the log only, in which a queue has no message."""
    clock = SimClock()
    _, master, replica = make_pair(clock, role=BrokerRole.ASYNC_MASTER)
    await master.start()
    await produce(master.at_work, incoming("t", [b"1", b"2", b"3"]))
    while master.at_work.store.log_end < 3 * LOG_FILE_BYTES:
        await produce(master.at_work, incoming("other", [b"x" * 10_000]))
    await produce(master.at_work, incoming("t", [b"4"]))
    await master.at_work.store.checkpoint()
    await master.at_work.store.follow_begin(LOG_FILE_BYTES)
    release = hold_log(master)
    await replica.start()
    await until(clock, lambda: replica.broker is not None and replica.at_work.replication.is_connected)
    await clock.advance(1)
    assert replica.at_work.store.log_end == LOG_FILE_BYTES
    await lose_power(clock, replica) if power_is_lost else await result_of(clock, replica.stop())
    release()
    await result_of(clock, master.stop())
    await replica.start()
    await replica.at_work.replication.promote(2, 0, BrokerRole.ASYNC_MASTER)
    await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
    (sent,) = await produce(replica.at_work, incoming("t", [b"new"]))
    assert sent.base_queue_offset == 3
    await replica.stop()


@asynccontextmanager
async def deleted_while_away(clock: SimClock) -> AsyncIterator[tuple[Network, Member, Member]]:
    """A pair whose replica is cut off. The group `g` had finished all of topic `t` before it was deleted: its offset is
    the number of the next message that a topic of the name gets.
    """
    async with pair(clock, role=BrokerRole.ASYNC_MASTER) as (network, master, replica):
        await send(clock, master, b"last")
        master.at_work.offsets.commit("g", [("t", 0, Progress(1))])
        await until(clock, lambda: replica.at_work.offsets.query("g", "t", 0) == Progress(1))
        network.cut(replica)
        await result_of(clock, master.at_work.topic_administration.delete("t"))
        yield network, master, replica


async def offsets_in_the_end(clock: SimClock, network: Network, *members: Member) -> list[Progress | None]:
    """What each of them knows of the group when the network is whole, and both logs are the same."""
    network.heal()
    await until(clock, lambda: len({member.at_work.store.log_end for member in members}) == 1)
    await clock.advance(5)
    return [member.at_work.offsets.query("g", "t", 0) for member in members]


async def test_a_replica_that_was_away_brings_no_offset_back_in_a_topic_that_was_deleted() -> None:
    clock = SimClock()
    async with deleted_while_away(clock) as (network, master, replica):
        assert await offsets_in_the_end(clock, network, master, replica) == [None, None]


async def test_an_offset_that_a_replica_brings_back_in_a_topic_that_was_made_again_is_on_both_sides() -> None:
    """It is the topic's first one. On the master alone it would be lost with that, and the group begin at the end."""
    clock = SimClock()
    async with deleted_while_away(clock) as (network, master, replica):
        await send(clock, master, b"first")
        assert await offsets_in_the_end(clock, network, master, replica) == [Progress(1), Progress(1)]

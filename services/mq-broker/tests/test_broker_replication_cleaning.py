"""Old files of a master and its replica: what waits in them is kept until both have it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mq_broker.core.consumer_offsets import RENEWALS_PER_TERM, Progress, version_of
from mq_broker.core.replica_state import BrokerRole, Epoch, HaStatus
from mq_broker.replication.feed import ReplicaFeed
from mq_broker.testing import LOG_FILE_BYTES, incoming, produce, read_all
from mq_broker.testing_replication import Member, Network, hold_log, make_pair, pair, promoted, until
from mqproto.codes import ResponseCode
from osenv import SimClock
from osenv.disk import read_file

LEVEL, LEVEL_S = 18, 7_200  # two hours
FORCED = 0.88


async def settled(clock: SimClock, work: asyncio.Task[object], *, seconds: float = 60) -> None:
    """Let time pass until the work is done. Raises what it raises."""
    for _ in range(round(seconds / 0.1)):
        if work.done():
            break
        await clock.advance(0.1)
    assert work.done()
    work.result()


async def send(clock: SimClock, member: Member, *, size: int = 0, delay_level: int = 0) -> ResponseCode:
    """One message; its code."""
    one = incoming("t" if delay_level else "other", [b"x" * max(1, size)], delay_level=delay_level)
    sending = asyncio.create_task(produce(member.at_work, one))
    await settled(clock, sending)
    return sending.result()[0].code


async def send_waiting_and_two_files(clock: SimClock, member: Member) -> None:
    """A delayed message in the first file of the log, and enough to have the two behind it."""
    codes = [await send(clock, member, delay_level=LEVEL)]
    while member.at_work.store.log_end < 2 * LOG_FILE_BYTES:
        codes.append(await send(clock, member, size=16_000))
    assert set(codes) == {ResponseCode.SUCCESS}


async def clean(clock: SimClock, member: Member, used_share: float = FORCED) -> None:
    """One round of the cleaner while the disk is too full."""
    member.disk.used_share = used_share
    await settled(clock, asyncio.create_task(member.at_work.retention.round()))
    member.disk.used_share = 0.0


async def delivered(member: Member) -> list[bytes]:
    return [record.body for record in await read_all(member.at_work, "t")]


@asynccontextmanager
async def pair_of_two(clock: SimClock) -> AsyncIterator[tuple[Network, Member, Member]]:
    """A synchronous master and its replica, which accept nothing that only one of them has."""
    network, master, replica = make_pair(clock, min_in_sync=2)
    await master.start()
    await replica.start()
    await clock.advance(1)
    assert master.at_work.replication.status().in_sync_replicas == 2
    try:
        yield network, master, replica
    finally:
        for member in (replica, master):
            if member.broker is not None:
                await member.stop()


async def test_a_master_without_its_replica_deletes_nothing_beyond_the_confirm_offset() -> None:
    """After a crash only what was noted last is confirmed, and what waits behind that cannot be written again."""
    clock = SimClock()
    async with pair_of_two(clock) as (_, master, replica):
        await send_waiting_and_two_files(clock, master)
        await replica.stop(clean=False)
        await master.stop(clean=False)
        await master.start()
        assert master.at_work.store.readable_end < master.at_work.store.log_end
        for _ in range(3):
            await clean(clock, master)
        assert (master.at_work.store.log_begin, master.at_work.delay.waiting(LEVEL)) == (0, 1)
        await replica.start()
        await clock.advance(30)
        await clean(clock, master)
        await clock.advance(30)
        assert master.at_work.store.log_begin == replica.at_work.store.log_begin > 0
        await clock.advance(LEVEL_S)
        assert await delivered(master) == await delivered(replica) == [b"x"]


async def test_a_file_stays_until_the_replica_has_what_was_carried_out_of_it() -> None:
    clock = SimClock()
    async with pair_of_two(clock) as (network, master, replica):
        await send_waiting_and_two_files(clock, master)
        network.cut(replica)
        written = []
        for _ in range(3):
            await clean(clock, master)
            written.append(master.at_work.store.log_end)
        assert (master.at_work.retention.carried, master.at_work.store.log_begin) == (1, 0)
        assert len(set(written)) == 1  # carried once, not in each round
        network.heal()
        await clock.advance(30)
        await clean(clock, master)
        await clock.advance(30)
        assert master.at_work.store.log_begin == replica.at_work.store.log_begin > 0
        await clock.advance(LEVEL_S)
        assert await delivered(master) == await delivered(replica) == [b"x"]


async def test_a_file_stays_until_a_replica_that_lags_behind_an_asynchronous_master_has_it_and_the_copies() -> None:
    clock = SimClock()
    async with pair(clock, role=BrokerRole.ASYNC_MASTER) as (network, master, replica):
        await send(clock, master, delay_level=LEVEL)
        await until(clock, lambda: replica.at_work.store.log_end == master.at_work.store.log_end)
        send_more = hold_log(master)
        await send_waiting_and_two_files(clock, master)
        for _ in range(2):
            await clean(clock, master)
            send_more()
            await clock.advance(1)
        assert master.at_work.retention.carried == 2
        assert (master.at_work.store.log_begin, replica.at_work.store.log_begin) == (0, 0)
        assert replica.at_work.replication.is_connected
        for _ in range(20):
            send_more()
        await clock.advance(1)
        await clean(clock, master)
        assert master.at_work.store.log_begin > 0
        await until(clock, lambda: replica.at_work.store.log_begin == master.at_work.store.log_begin)
        await promoted(clock, network, master, replica)
        await clock.advance(LEVEL_S)
        assert await delivered(replica) == [b"x", b"x"]


async def test_on_a_disk_that_takes_no_writes_any_more_no_file_waits_for_a_replica() -> None:
    clock = SimClock()
    async with pair(clock, role=BrokerRole.ASYNC_MASTER) as (_, master, _replica):
        hold_log(master)
        await send_waiting_and_two_files(clock, master)
        await clean(clock, master)
        assert master.at_work.store.log_begin == 0
        await clean(clock, master, used_share=0.9)
        assert master.at_work.store.log_begin > 0


@asynccontextmanager
async def newcomer(
    clock: SimClock, network: Network, master: Member, replica: Member, hold: Callable[[Member], object] = hold_log
) -> AsyncIterator[Member]:
    """A second replica, which begins where the master's log begins now, without the first file, and has no record."""
    await send_waiting_and_two_files(clock, master)
    await replica.stop()
    await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 1)
    await clean(clock, master)
    third = Member("c:10912", clock, network, BrokerRole.SLAVE, 2, replica.options)
    network.members[third.name] = third
    hold(master)
    await third.start()
    await until(clock, lambda: third.broker is not None and third.broker.replication.is_connected)
    assert third.at_work.store.log_begin == third.at_work.store.log_end == master.at_work.store.log_begin > 0
    yield third
    await third.stop()


async def test_a_replica_without_records_follows_a_successor_whose_log_begins_earlier() -> None:
    clock = SimClock()
    async with pair(clock) as (network, master, replica), newcomer(clock, network, master, replica) as third:
        await replica.start()
        successor = (await promoted(clock, network, master, replica)).store
        assert successor.log_begin == 0
        await third.stop()
        third.options = replace(third.options, master_ha_address=replica.name)
        await third.start()
        await until(clock, lambda: third.broker is not None and third.broker.store.log_end == successor.log_end)
        assert third.log_bytes == replica.log_bytes


async def test_a_former_master_has_the_queue_numbers_of_a_successor_without_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The successor was not told the numbers of its queues before it was promoted, so it begins with 0."""

    async def held(_feed: ReplicaFeed) -> None:
        await asyncio.Event().wait()

    def hold_all(_master: Member) -> None:
        monkeypatch.setattr(ReplicaFeed, "_send_states", held)

    clock = SimClock()
    async with (
        pair(clock) as (network, master, replica),
        newcomer(clock, network, master, replica, hold_all) as third,
    ):
        master.at_work.consumer_offsets.begin("g", "other", 0, 3)
        successor = (await promoted(clock, network, master, third)).store
        monkeypatch.undo()
        network.heal()
        await master.at_work.replication.superseded(Epoch(2, 0), third.name)
        await until(clock, lambda: master.broker is not None and master.broker.replication.is_connected)
        assert master.at_work.store.confirmation.end == successor.log_end  # and not what was cut
        assert await send(clock, third) is ResponseCode.SUCCESS
        await until(clock, lambda: master.broker is not None and master.broker.store.log_end == successor.log_end)
        assert master.at_work.store.queue_end("other", 0) == successor.queue_end("other", 0) == 1
        known = [one.at_work.consumer_offsets.progress("g", "other", 0) for one in (master, third)]
        assert known == [Progress(0, (), version_of(RENEWALS_PER_TERM, 0))] * 2  # it was not told of the topic either


async def test_a_replica_without_records_follows_a_successor_that_gives_other_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The former master has told it the numbers of its queues, and the successor nothing."""

    async def held(_feed: ReplicaFeed) -> None:
        await asyncio.Event().wait()

    clock = SimClock()
    async with pair(clock) as (network, master, replica), newcomer(clock, network, master, replica) as told:
        await until(clock, lambda: told.at_work.store.queue_end("other", 0) > 0)
        monkeypatch.setattr(ReplicaFeed, "_send_states", held)
        successor = Member("d:10912", clock, network, BrokerRole.SLAVE, 3, replica.options)
        network.members[successor.name] = successor
        await successor.start()
        await until(clock, lambda: successor.broker is not None and successor.broker.replication.is_connected)
        log_begin = (await promoted(clock, network, master, successor)).store.log_begin
        monkeypatch.undo()
        await told.stop()
        told.options = replace(told.options, master_ha_address=successor.name)
        await told.start()
        assert (successor.at_work.store.log_end, told.at_work.store.log_end) == (log_begin, log_begin)
        assert await send(clock, successor) is ResponseCode.SUCCESS
        log_end = successor.at_work.store.log_end
        await until(clock, lambda: told.broker is not None and told.broker.store.log_end == log_end)
        assert told.at_work.store.queue_end("other", 0) == successor.at_work.store.queue_end("other", 0) == 1
        await successor.stop()


async def fill_and_clean(clock: SimClock, member: Member, log_begin_min: int) -> None:
    """Have its log begin at that offset, or behind it."""
    while member.at_work.store.log_begin < log_begin_min:
        await send_waiting_and_two_files(clock, member)
        assert await send(clock, member, size=LOG_FILE_BYTES // 2) is ResponseCode.SUCCESS
        await clean(clock, member)


async def test_a_former_master_keeps_its_log_from_a_broker_that_has_never_followed_it() -> None:
    """Also when the other one's log begins where the former master's has ended long ago."""
    clock = SimClock()
    network, master, other = make_pair(clock, role=BrokerRole.ASYNC_MASTER)
    await master.start()
    await send(clock, master)
    kept, log_bytes = master.at_work.store.log_end, master.log_bytes
    network.cut(master)
    await other.start()
    await other.at_work.replication.promote(2, 0, BrokerRole.ASYNC_MASTER)
    await until(clock, lambda: other.broker is not None and other.at_work.is_master)
    await fill_and_clean(clock, other, LOG_FILE_BYTES)
    network.heal()
    await master.at_work.replication.superseded(Epoch(2, 0), other.name)
    await until(clock, lambda: master.broker is not None and "different brokers" in status(master).reason)
    assert (master.at_work.store.log_end, master.log_bytes) == (kept, log_bytes)
    for member in (master, other):
        await member.stop()


async def test_the_tail_of_a_former_master_is_kept_when_its_successor_has_deleted_what_they_share() -> None:
    clock = SimClock()
    async with pair(clock, role=BrokerRole.ASYNC_MASTER) as (network, master, replica):
        await send(clock, master)
        await until(clock, lambda: replica.at_work.store.log_end == master.at_work.store.log_end)
        fork = master.at_work.store.log_end
        network.cut(master)
        await send(clock, master, size=100)
        tail = master.log_bytes[fork:]
        await replica.at_work.replication.promote(2, 0, BrokerRole.ASYNC_MASTER)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        await fill_and_clean(clock, replica, LOG_FILE_BYTES)
        network.heal()
        await master.at_work.replication.superseded(Epoch(2, 0), replica.name)
        await until(clock, lambda: status(replica).in_sync_replicas == 2)
        assert master.log_bytes == replica.log_bytes
        folder = master.at_work.store.layout.quarantine
        kept = [read_file(master.disk, folder / name) for name in master.disk.list_dir(folder) if ".tail" in name]
        assert kept == [tail]


def status(member: Member) -> HaStatus:
    return member.at_work.replication.status()

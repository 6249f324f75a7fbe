"""A master and its replica, in memory and on simulated time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import RejectedError
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.core.replica_state import BrokerRole, Cut, Epoch
from mq_broker.core.transactions import TransactionState
from mq_broker.replication.following import Following
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import LOG_FILE_BYTES, half, incoming, produce, read_all
from mq_broker.testing_replication import Member, make_pair, pair, send, until
from mqproto.codes import ResponseCode
from osenv import SeededRng, SimClock, SimDisk


async def bodies(member: Member) -> list[bytes]:
    return [record.body for record in await read_all(member.at_work, "t")]


def all_the_same(*members: Member) -> bool:
    return len({member.log_bytes for member in members if member.broker is not None}) == 1


@pytest.mark.mechanism("H1")
@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER])
@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_a_replica_gets_the_masters_log(role: BrokerRole, flush: FlushDiskType) -> None:
    clock = SimClock()
    _, master, replica = make_pair(clock, role=role, flush=flush)
    await master.start()
    await produce(master.at_work, *[incoming("t", [b"%d" % number], queue_id=number % 4) for number in range(50)])
    await replica.start()
    await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 2)
    outcomes = await send(clock, master, *[b"more"] * 10)
    assert [outcome.code for outcome in outcomes] == [ResponseCode.SUCCESS]
    await clock.advance(1)
    assert all_the_same(master, replica)
    assert len(await read_all(replica.at_work, "t")) == len(await read_all(master.at_work, "t")) == 23
    await replica.stop()
    await master.stop()


@pytest.mark.mechanism("N12", "H4")
async def test_a_replica_is_never_written() -> None:
    clock = SimClock()
    async with pair(clock) as (_, _, replica):
        (outcome,) = await produce(replica.at_work, incoming("t", [b"x"]))
        assert outcome.code is ResponseCode.NOT_LEADER_FOR_QUEUE
        assert replica.at_work.topics.get("t") is None
        assert not replica.at_work.replication.status().writable


@pytest.mark.mechanism("H1")
async def test_a_synchronous_master_without_a_replica_says_so() -> None:
    clock = SimClock()
    _, master, _ = make_pair(clock)
    await master.start()
    (outcome,) = await send(clock, master, b"x")
    assert outcome.code is ResponseCode.SLAVE_NOT_AVAILABLE
    assert await bodies(master) == [b"x"]
    await master.stop()


@pytest.mark.mechanism("H1")
async def test_what_the_replica_does_not_have_is_not_visible() -> None:
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        network.cut(replica)
        (outcome,) = await send(clock, master, b"x")
        assert outcome.code is ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert await bodies(master) == []
        network.heal()
        await until(clock, lambda: replica.at_work.replication.is_connected)
        await clock.advance(1)
        assert await bodies(master) == await bodies(replica) == [b"x"]


async def test_a_replica_that_is_gone_leaves_the_set_on_disk_before_the_master_goes_on_alone() -> None:
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        network.cut(replica)
        await send(clock, master, b"x")
        replicas = master.at_work.replication.status
        await until(clock, lambda: replicas().in_sync_replicas == 1)
        (outcome,) = await send(clock, master, b"y")
        assert outcome.code is ResponseCode.SLAVE_NOT_AVAILABLE
        assert await bodies(master) == [b"x", b"y"]
        await master.stop(clean=False)
        await master.start()
        assert master.at_work.replication.status().in_sync_replicas == 1
        network.heal()
        await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 2)
        (outcome,) = await send(clock, master, b"z")
        assert outcome.code is ResponseCode.SUCCESS
        assert all_the_same(master, replica)


async def test_a_replica_that_stops_in_order_is_not_waited_for() -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, replica):
        await replica.stop()
        await clock.advance(0.1)
        assert master.at_work.replication.status().in_sync_replicas == 1
        (outcome,) = await produce(master.at_work, incoming("t", [b"x"]))
        assert outcome.code is ResponseCode.SLAVE_NOT_AVAILABLE
        await replica.start()
        await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 2)
        assert all_the_same(master, replica)


async def test_a_replica_whose_master_has_stopped_in_order_shows_all_that_was_confirmed() -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, replica):
        await clock.advance(1)
        for body in (b"1", b"2"):  # that the second one is confirmed the replica would hear 20 ms after the first
            (outcome,) = await produce(master.at_work, incoming("t", [body]))
            assert outcome.code is ResponseCode.SUCCESS
            await clock.advance(0)
        assert await bodies(replica) == [b"1"]
        await master.stop()
        await until(clock, lambda: not replica.at_work.replication.is_connected)
        assert await bodies(replica) == [b"1", b"2"]


@pytest.mark.mechanism("H1")
async def test_with_two_replicas_asked_for_a_master_alone_rejects() -> None:
    clock = SimClock()
    async with pair(clock, min_in_sync=2) as (network, master, replica):
        network.cut(replica)
        await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 1)
        end = master.at_work.store.log_end
        (outcome,) = await send(clock, master, b"x")
        assert outcome.code is ResponseCode.SYSTEM_ERROR
        assert "1 of 2 replicas are in sync" in outcome.remark
        assert master.at_work.store.log_end == end
        network.heal()
        await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 2)
        assert (await send(clock, master, b"x"))[0].code is ResponseCode.SUCCESS


async def test_the_roles_change_and_nothing_is_lost() -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, replica):
        await send(clock, master, b"1", b"2")
        old = master.at_work.replication
        end, role = await old.step_down(old.epoch)
        assert (end, role) == (master.at_work.store.log_end, BrokerRole.SYNC_MASTER)
        assert await old.step_down(old.epoch) == (end, role)
        assert (await send(clock, master, b"no"))[0].code is ResponseCode.NOT_LEADER_FOR_QUEUE
        await until(clock, lambda: replica.at_work.store.flusher.durable_end == end)
        await replica.at_work.replication.promote(2, end, role)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        assert replica.at_work.replication.epoch == Epoch(2, 0)
        assert replica.at_work.identity.broker_id == 0
        await master.at_work.replication.become_replica(1, "b:10912", Epoch(2, 0))
        await until(clock, lambda: replica.at_work.replication.status().in_sync_replicas == 2)
        assert not master.at_work.is_master
        assert master.at_work.identity.broker_id == 1
        assert (await send(clock, replica, b"3"))[0].code is ResponseCode.SUCCESS
        await clock.advance(1)
        assert await bodies(replica) == await bodies(master) == [b"1", b"2", b"3"]
        assert all_the_same(master, replica)
        for member in (master, replica):  # what an operator has switched stays switched
            await member.stop(clean=False)
            await member.start()
        assert replica.at_work.is_master
        assert not master.at_work.is_master
        assert replica.at_work.replication.epoch == Epoch(2, 1)


@pytest.mark.parametrize("is_planned", [True, False])
async def test_what_members_finish_counts_across_a_planned_switch_and_no_other(is_planned: bool) -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, replica):
        await send(clock, master, b"1", b"2", b"3")
        version = master.at_work.consumer_offsets.begin("g", "t", 0, 0).version
        old = master.at_work.replication
        end, role = await old.step_down(old.epoch)
        await until(clock, lambda: replica.at_work.store.flusher.durable_end == end)
        await until(clock, lambda: replica.at_work.consumer_offsets.query("g", "t", 0) == 0)
        await replica.at_work.replication.promote(2, end, role, old.epoch, whole=is_planned)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        replica.at_work.offsets.commit("g", [("t", 0, Progress(3, (), version))])
        now = replica.at_work.offsets.query("g", "t", 0)
        assert now is not None
        assert now.offset == (3 if is_planned else 0)
        await replica.stop(clean=False)
        await replica.start()  # nothing has been lost since, either
        now = replica.at_work.offsets.query("g", "t", 0)
        assert now is not None
        assert (now.version == version) == is_planned


async def test_a_planned_switch_to_a_replica_that_has_not_heard_from_its_master_since_its_start_renews_versions() -> (
    None
):
    """Both machines have died with equal logs; the master has renewed its versions, which the replica does not know."""
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        await send(clock, master, b"1", b"2", b"3")
        version = master.at_work.consumer_offsets.begin("g", "t", 0, 0).version
        await until(clock, lambda: replica.at_work.consumer_offsets.query("g", "t", 0) == 0)
        await replica.stop(clean=False)
        network.cut(replica)
        await replica.start()
        master.at_work.consumer_offsets.renew_versions()
        old = master.at_work.replication
        end, role = await old.step_down(old.epoch)
        await replica.at_work.replication.promote(2, end, role, old.epoch, whole=True)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        now = replica.at_work.offsets.query("g", "t", 0)
        assert now is not None
        assert now.version > version


async def test_a_master_that_has_stepped_down_can_be_the_master_again() -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, replica):
        end, role = await master.at_work.replication.step_down(master.at_work.replication.epoch)
        await master.at_work.replication.promote(2, end, role)
        await until(clock, lambda: master.broker is not None and master.at_work.replication.epoch == Epoch(2, 0))
        await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 2)
        assert (await send(clock, master, b"x"))[0].code is ResponseCode.SUCCESS
        assert replica.at_work.replication.epoch == Epoch(2, 0)


async def test_a_replica_that_lacks_something_is_not_promoted() -> None:
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        network.cut(replica)
        await send(clock, master, b"x")
        with pytest.raises(RejectedError, match="has to reach"):
            await replica.at_work.replication.promote(2, master.at_work.store.log_end, BrokerRole.SYNC_MASTER)
        with pytest.raises(RejectedError, match="has to be a greater one"):
            await replica.at_work.replication.promote(1, 0, BrokerRole.SYNC_MASTER)
        with pytest.raises(RejectedError, match=r"followed the master of epoch 1\.1, and not that of epoch 1\.2"):
            await replica.at_work.replication.promote(2, 0, BrokerRole.SYNC_MASTER, Epoch(1, 2))
        with pytest.raises(RejectedError, match="no role of a master"):
            await replica.at_work.replication.promote(2, 0, BrokerRole.SLAVE)
        network.heal()
        await until(clock, lambda: replica.at_work.replication.is_connected)


@pytest.mark.mechanism("H6")
async def test_a_stale_master_comes_back_as_a_replica_and_its_own_tail_is_kept_aside() -> None:
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        await send(clock, master, b"both")
        network.cut(master)
        assert (await send(clock, master, b"alone", b"too"))[0].code is ResponseCode.FLUSH_SLAVE_TIMEOUT
        await replica.at_work.replication.promote(2, 0, BrokerRole.SYNC_MASTER)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        await send(clock, replica, b"new")
        lost = master.at_work.store.log_end
        network.heal()
        await master.at_work.replication.superseded(Epoch(2, 0), "b:10912")
        assert (await send(clock, master, b"no"))[0].code is ResponseCode.NOT_LEADER_FOR_QUEUE
        await until(clock, lambda: replica.at_work.replication.status().in_sync_replicas == 2)
        assert all_the_same(master, replica)
        assert await bodies(master) == [b"both", b"new"]
        kept = master.disk.list_dir(master.at_work.store.layout.quarantine)
        assert [name for name in kept if name.endswith(".tail")], (kept, lost)


async def test_a_stale_master_follows_a_successor_that_has_no_record_of_its_log() -> None:
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        network.cut(master)
        assert (await send(clock, master, b"alone"))[0].code is ResponseCode.FLUSH_SLAVE_TIMEOUT
        await replica.at_work.replication.promote(2, 0, BrokerRole.SYNC_MASTER)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        await send(clock, replica, b"new")
        network.heal()
        await master.at_work.replication.superseded(Epoch(2, 0), "b:10912")
        await until(clock, lambda: replica.at_work.replication.status().in_sync_replicas == 2)
        assert all_the_same(master, replica)
        assert await bodies(master) == [b"new"]
        kept = master.disk.list_dir(master.at_work.store.layout.quarantine)
        assert [name for name in kept if name.endswith(".tail")], kept


async def test_a_replica_whose_log_is_about_to_be_cut_is_not_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is as long as the operator asks for, with records that its master does not have."""
    clock, prepare, asked = SimClock(), Following._prepare_cut, list[asyncio.Task[None]]()

    async def prepare_and_ask(following: Following, cut: Cut) -> None:
        await prepare(following, cut)
        replication = master.at_work.replication
        asked.append(asyncio.create_task(replication.promote(3, new_end, BrokerRole.SYNC_MASTER)))
        await asyncio.sleep(0)  # it is being carried out, and ends this link

    async with pair(clock) as (network, master, replica):
        network.cut(master)
        await send(clock, master, b"alone", b"and more")
        await replica.at_work.replication.promote(2, 0, BrokerRole.SYNC_MASTER)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        await send(clock, replica, b"new")
        new_end = replica.at_work.store.log_end
        assert new_end < master.at_work.store.log_end
        monkeypatch.setattr(Following, "_prepare_cut", prepare_and_ask)
        network.heal()
        await master.at_work.replication.superseded(Epoch(2, 0), "b:10912")
        await until(clock, lambda: bool(asked) and asked[0].done())
        with pytest.raises(RejectedError, match="about to be cut"):
            asked[0].result()
        await until(clock, lambda: replica.at_work.replication.status().in_sync_replicas == 2)
        assert all_the_same(master, replica)


async def test_a_replica_with_a_newer_epoch_fences_its_old_master() -> None:
    """Bug zoo 20."""
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        network.cut(master)
        await replica.at_work.replication.promote(5, 0, BrokerRole.SYNC_MASTER)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        await replica.at_work.replication.step_down(replica.at_work.replication.epoch)
        network.heal()
        await replica.at_work.replication.become_replica(1, "a:10912", Epoch(5, 0))
        await until(clock, lambda: master.broker is not None and not master.at_work.is_master)
        assert master.at_work.store.follows


async def test_a_restarted_master_begins_an_epoch_and_its_replica_drops_what_the_master_has_lost() -> None:
    clock = SimClock()
    options = {"role": BrokerRole.ASYNC_MASTER, "flush": FlushDiskType.ASYNC_FLUSH}
    async with pair(clock, **options) as (_, master, replica):
        await send(clock, master, b"kept")
        await clock.advance(1)
        await send(clock, master, b"lost")
        await until(clock, lambda: replica.at_work.store.log_end == master.at_work.store.log_end)
        master_disk = master.disk
        await master.stop(clean=False)
        master_disk.crash(SeededRng(3))
        await master.start()
        assert master.at_work.replication.epoch == Epoch(1, 2)
        await until(clock, lambda: replica.broker is not None and replica.at_work.replication.is_connected)
        await send(clock, master, b"new")
        await until(clock, lambda: replica.at_work.store.log_end == master.at_work.store.log_end)
        assert all_the_same(master, replica)
        assert await bodies(replica) == await bodies(master)


async def test_a_broker_of_another_name_is_rejected() -> None:
    clock = SimClock()
    async with pair(clock) as (_, _, replica):
        await replica.stop()
        replica.broker_name = "broker-b"
        await replica.start()
        await clock.advance(2)
        assert "brokerName and brokerClusterName have to be the same" in replica.at_work.replication.status().reason


async def test_a_copy_of_the_masters_store_is_no_replica() -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, replica):
        await replica.stop()
        await master.stop()
        replica.disk = master.disk.fork()
        replica.options = replace(replica.options, master_ha_address="a:10912")
        await master.start()
        await replica.start()
        await clock.advance(2)
        assert "own replica id" in replica.at_work.replication.status().reason


async def test_who_waits_for_what_a_restarted_master_has_not_confirmed_yet_is_told_when_it_is() -> None:
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        await send(clock, master, b"x")
        await master.stop(clean=False)
        network.cut(replica)
        await master.start()
        assert await bodies(master) == []
        answers: list[PullResult] = []
        query = PullQuery("g", "t", 0, 0, 32, 1 << 20, "*", "TAG")
        master.at_work.long_polling.poll(query, 15_000, answers.append)
        await clock.advance(0.5)
        assert answers == []
        network.heal()
        await until(clock, lambda: bool(answers), seconds=3)
        assert answers[0].count == 1


async def test_strangers_are_not_remembered_for_ever() -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, replica):
        await replica.stop()
        for _ in range(40):
            replica.disk = SimDisk()
            await replica.start()
            await until(clock, lambda: replica.at_work.replication.is_connected)
            await replica.stop()
            await clock.advance(1)
        assert len(master.at_work.replication.status().replicas) <= 17


async def test_a_commit_that_too_few_replicas_would_have_is_rejected_and_stays_open() -> None:
    """Bug zoo 26: a transaction is not dropped because its commit came at the wrong time."""
    clock = SimClock()
    async with pair(clock, min_in_sync=2) as (network, master, replica):
        (outcome,) = await produce(master.at_work, half("t", b"paid", "tx-1"))
        assert outcome.code is ResponseCode.SUCCESS
        network.cut(replica)
        await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 1)
        commit = partial(
            master.at_work.transactions.end, "shop", "tx-1", TransactionState.COMMIT_MESSAGE, from_check=False
        )
        assert (await commit()).code is ResponseCode.SYSTEM_ERROR
        network.heal()
        await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 2)
        ending = asyncio.ensure_future(commit())
        await until(clock, ending.done)
        assert ending.result().code is ResponseCode.SUCCESS
        await clock.advance(1)
        assert await bodies(master) == await bodies(replica) == [b"paid"]


async def test_a_queue_without_messages_goes_on_counting_on_a_replica_that_never_had_one() -> None:
    clock = SimClock()
    _, master, replica = make_pair(clock)
    await master.start()
    await produce(master.at_work, incoming("old", [b"x"] * 7))
    while master.at_work.store.log_end < 3 * LOG_FILE_BYTES:
        await produce(master.at_work, incoming("t", [b"x" * 10_000]))
    await master.at_work.store.checkpoint()
    await master.at_work.store.follow_begin(LOG_FILE_BYTES)
    assert master.at_work.store.queue_bounds("old", 0) == (7, 7)
    await replica.start()
    await until(clock, lambda: replica.at_work.store.log_end == master.at_work.store.log_end)
    assert replica.at_work.store.queue_bounds("old", 0) == (7, 7)
    await produce(master.at_work, incoming("old", [b"y"]))
    await until(clock, lambda: replica.at_work.store.queue_end("old", 0) == 8)
    await replica.stop(clean=False)
    await replica.start()
    assert replica.at_work.store.queue_bounds("old", 0) == (7, 8)
    assert all_the_same(master, replica)
    await replica.stop()
    await master.stop()


async def test_a_promoted_replica_knows_the_open_transactions() -> None:
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        await produce(master.at_work, half("t", b"paid", "tx-1"))
        await replica.at_work.store.checkpoint()
        network.cut(master)
        await replica.at_work.replication.promote(2, 0, BrokerRole.ASYNC_MASTER)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        ended = await replica.at_work.transactions.end(
            "shop", "tx-1", TransactionState.COMMIT_MESSAGE, from_check=False
        )
        assert ended.code is ResponseCode.SUCCESS
        assert await bodies(replica) == [b"paid"]


async def test_a_commit_of_which_the_replica_has_only_the_message_is_committed_once() -> None:
    """The master's one write may reach a replica in pieces."""
    clock = SimClock()
    async with pair(clock) as (network, master, replica):
        await produce(master.at_work, half("t", b"paid", "tx-1"))
        before = replica.at_work.store.log_end
        network.cut(replica)
        commit = partial(
            master.at_work.transactions.end, "shop", "tx-1", TransactionState.COMMIT_MESSAGE, from_check=False
        )
        ending = asyncio.ensure_future(commit())
        await until(clock, ending.done)
        chunk = await master.at_work.store.log_feed.read(before, 1)
        assert chunk.end < master.at_work.store.log_end
        replica.at_work.store.append_copy(before, chunk.data)
        await replica.at_work.replication.promote(2, 0, BrokerRole.ASYNC_MASTER)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        again = partial(
            replica.at_work.transactions.end, "shop", "tx-1", TransactionState.COMMIT_MESSAGE, from_check=False
        )
        assert (await again()).code is ResponseCode.SUCCESS
        assert await bodies(replica) == [b"paid"]


async def test_a_replica_knows_how_full_its_disk_is() -> None:
    clock = SimClock()
    async with pair(clock) as (_, master, replica):
        replica.disk.used_share = 0.95
        await until(clock, lambda: replica.at_work.store.gate.used_share == 0.95)
        assert replica.at_work.store.gate.rejection
        assert not master.at_work.store.gate.rejection
        await send(clock, master, b"a replica takes what its master sends while there is any room")
        await until(clock, lambda: all_the_same(master, replica))

"""A master whose store was put back from a backup, beside the replica that lives (ADR 115)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mq_broker.core.limits import RejectedError
from mq_broker.core.replica_state import NO_EPOCH, BrokerRole, Epoch, EpochBegin, EpochHistory, common_end
from mq_broker.replication.feed import ACCEPTED_S
from mq_broker.testing import copied, incoming, produce, restored
from mq_broker.testing_replication import HeldDisk, Member, make_pair, send, until
from mqproto.codes import ResponseCode
from osenv import SimClock

ROLE = BrokerRole.ASYNC_MASTER


@asynccontextmanager
async def restored_beside_replica(
    clock: SimClock, *, before: int = 3, after: int = 3
) -> AsyncIterator[tuple[Member, Member]]:
    """The restored master and the replica, which has what came after the backup; both run."""
    network, master, replica = make_pair(clock, role=ROLE)
    await master.start()
    await replica.start()
    await send(clock, master, *[b"before"] * before)
    parts = await copied(master.at_work)
    await send(clock, master, *[b"after"] * after)
    await until(clock, lambda: replica.at_work.store.log_end == master.at_work.store.log_end)
    await master.stop(clean=False)
    options = replace(master.options, is_registered=True)
    again = Member(master.name, clock, network, ROLE, 0, options, disk=restored(parts))
    again.opened = 7  # so that it draws other numbers than before
    network.members[master.name] = again
    await again.start()
    try:
        yield again, replica
    finally:
        for member in (again, replica):
            if member.broker is not None:
                await member.stop()


async def settle_in(clock: SimClock, master: Member) -> None:
    """Name servers know of no other broker of the name."""
    await master.at_work.replication.accepted()
    await clock.advance(ACCEPTED_S)
    await master.at_work.replication.accepted()
    await until(clock, lambda: master.broker is not None and master.at_work.replication.status().writable)


async def test_neither_acknowledges_nor_cuts_anything_and_both_say_why() -> None:
    clock = SimClock()
    async with restored_beside_replica(clock) as (master, replica):
        kept = replica.log_bytes
        for _ in range(2):  # a start begins an epoch, which is the replica's first and then a higher one
            await clock.advance(5)
            (outcome,) = await produce(master.at_work, incoming("t", [b"split"]))
            assert outcome.code is ResponseCode.NOT_LEADER_FOR_QUEUE
            status = master.at_work.replication.status()
            assert (status.writable, "put back from a backup" in status.reason) == (False, True)
            reason = replica.at_work.replication.status().reason
            assert "put back from a backup" in reason
            assert "--oldMasterIsLost" in reason
            assert replica.log_bytes == kept
            await master.stop()
            await master.start()


@pytest.mark.parametrize("before", [3, 0])
async def test_the_replica_is_promoted_and_the_restored_one_follows_it(before: int) -> None:
    clock = SimClock()
    async with restored_beside_replica(clock, before=before) as (master, replica):
        await replica.at_work.replication.promote(2, 0, ROLE)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        await master.at_work.replication.superseded(Epoch(2, 0), replica.name)  # as a name server says
        await send(clock, replica, b"later")
        await until(
            clock,
            lambda: (
                master.broker is not None
                and not master.at_work.is_master
                and master.at_work.store.log_end == replica.at_work.store.log_end
            ),
        )
        assert master.log_bytes == replica.log_bytes
        assert replica.at_work.store.queue_end("t", 0) == before + 3 + 1


async def test_the_restored_one_is_taken_as_the_master_and_the_replica_follows_it() -> None:
    clock = SimClock()
    async with restored_beside_replica(clock) as (master, replica):
        await master.at_work.replication.promote(2, 0, ROLE)
        await until(clock, lambda: master.broker is not None and master.at_work.replication.status().writable)
        (outcome,) = await send(clock, master, b"later")
        assert outcome.code is ResponseCode.SUCCESS
        await until(
            clock,
            lambda: replica.broker is not None and replica.at_work.store.log_end == master.at_work.store.log_end,
        )
        assert master.log_bytes == replica.log_bytes
        assert master.at_work.store.queue_end("t", 0) == 3 + 1


async def test_it_begins_when_name_servers_have_known_of_no_other_replica_for_long_enough() -> None:
    clock = SimClock()
    async with restored_beside_replica(clock) as (master, replica):
        await replica.stop()
        replication = master.at_work.replication
        await replication.accepted()
        await clock.advance(ACCEPTED_S - 1)
        replication.rejected("a replica lives")
        assert replication.status().reason == "a replica lives"
        await clock.advance(2)
        await replication.accepted()
        await clock.advance(ACCEPTED_S - 1)
        await replication.accepted()
        assert (replication.is_restored, replication.reopen.is_set()) == (True, False)
        await clock.advance(1)
        await replication.accepted()
        await until(clock, lambda: master.broker is not None and master.at_work.replication.status().writable)
        (outcome,) = await send(clock, master, b"later")
        assert outcome.code is ResponseCode.SUCCESS
        assert not master.at_work.replication.is_restored


async def test_a_replica_that_comes_later_drops_nothing_for_it_by_itself() -> None:
    clock = SimClock()
    async with restored_beside_replica(clock) as (master, replica):
        await replica.stop()
        await settle_in(clock, master)
        await replica.start()
        kept = replica.log_bytes
        for _ in range(2):
            await until(clock, lambda: "two masters in term 1" in replica.at_work.replication.status().reason)
            assert replica.log_bytes == kept
            await master.stop()
            await master.start()  # in an epoch that is higher than all that the replica has seen


async def test_a_replica_that_comes_later_tells_ways_out_that_lead_on() -> None:
    clock = SimClock()
    async with restored_beside_replica(clock) as (master, replica):
        await replica.stop()
        await settle_in(clock, master)
        await replica.start()
        await until(clock, lambda: "two masters in term 1" in replica.at_work.replication.status().reason)
        reason = replica.at_work.replication.status().reason
        with pytest.raises(RejectedError, match="this broker is the master"):
            await master.at_work.replication.promote(2, 0, ROLE)
        assert "--to" not in reason, "the other one is the master, and a switch to it changes nothing"
        assert "start this one with an empty storePathRootDir" in reason
        kept = replica.disk
        await replica.stop()
        replica.disk = HeldDisk()
        await replica.start()
        await until(clock, lambda: replica.at_work.store.log_end == master.at_work.store.log_end)
        await replica.stop()
        replica.disk = kept
        assert "stop the other one and promote this one" in reason
        await master.stop()
        await replica.start()
        await replica.at_work.replication.promote(2, 0, ROLE)
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        assert replica.at_work.store.queue_end("t", 0) == 3 + 3


async def test_a_new_replica_follows_it_once_it_has_begun() -> None:
    clock = SimClock()
    async with restored_beside_replica(clock) as (master, replica):
        await replica.stop()
        new = replace(replica, disk=HeldDisk())
        await new.start()
        await clock.advance(5)
        assert new.at_work.replication.epoch == NO_EPOCH, "a name server would take it for one that knows more"
        await settle_in(clock, master)
        await until(clock, lambda: new.at_work.store.log_end == master.at_work.store.log_end)
        await new.stop()


async def test_a_higher_epoch_without_a_master_does_not_make_it_a_replica_and_a_running_master_does() -> None:
    clock = SimClock()
    async with restored_beside_replica(clock) as (master, _):
        replication = master.at_work.replication
        await replication.superseded(Epoch(1, 9), "")
        assert not replication.reopen.is_set()
        await replication.superseded(Epoch(1, 9), "b:10912")
        await until(clock, lambda: master.broker is not None and not master.at_work.is_master)


def test_two_logs_can_be_the_same_where_one_of_them_knows_no_epochs() -> None:
    whole = EpochHistory((EpochBegin(Epoch(1, 1), 0), EpochBegin(Epoch(2, 0), 900)))
    put_back = EpochHistory((EpochBegin(Epoch(1, 1), 500),))
    assert common_end(put_back, 600, whole, 1_000) == common_end(whole, 1_000, put_back, 600) == 500
    assert common_end(put_back, 500, whole, 400) == 400

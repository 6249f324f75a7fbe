"""Whatever a master answers is as durable as an acknowledged message: the in-sync replicas have it."""

from __future__ import annotations

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import RejectedError
from mq_broker.core.replica_state import BrokerRole
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.recalling import NewTime
from mq_broker.replication.feed import STATES_INTERVAL_S
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import (
    LOG_FILE_BYTES,
    half,
    incoming,
    keyed,
    outcomes,
    produce,
    read_all,
    running_broker,
    store_options,
    timed,
)
from mq_broker.testing_replication import hold_log, pair, promoted, result_of, send, until
from mqproto.codes import RecallOutcome, ResponseCode
from mqproto.names import SCHEDULE_TOPIC
from osenv import SeededRng, SimClock, SimDisk


async def test_a_send_back_that_the_replica_does_not_have_is_no_success() -> None:
    clock = SimClock()
    async with pair(clock, min_in_sync=2) as (network, master, _):
        (outcome,) = await send(clock, master, b"x")
        network.cut(master)
        code, remark, _ = await result_of(
            clock,
            master.at_work.send_back.send_back("g", outcome.base_log_offset, delay_level=0, max_reconsume_times=0),
        )
        assert code is ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert "in-sync replicas" in remark


async def test_a_message_that_its_group_sent_back_is_not_finished_where_its_retry_is_not() -> None:
    clock = SimClock()
    async with pair(clock, role=BrokerRole.ASYNC_MASTER) as (_, master, replica):
        (outcome,) = await send(clock, master, b"x")
        master.at_work.consumer_offsets.begin("g", "t", 0, 0)
        finished = replica.at_work.consumer_offsets
        await until(clock, lambda: finished.query("g", "t", 0) == 0)
        send_more = hold_log(master)
        for _ in range(3):
            await send(clock, master, bytes(LOG_FILE_BYTES // 2))  # what the replica has to take over first
        code, *_ = await master.at_work.send_back.send_back(
            "g", outcome.base_log_offset, delay_level=0, max_reconsume_times=0
        )
        assert code is ResponseCode.SUCCESS
        master.at_work.consumer_offsets.put("g", "t", 0, Progress(1))
        await clock.advance(2 * STATES_INTERVAL_S)  # it may go out between two chunks
        send_more()
        await until(clock, lambda: replica.at_work.store.log_end > LOG_FILE_BYTES // 2)
        await clock.advance(1)
        assert replica.at_work.store.log_end < master.at_work.store.log_end
        assert finished.query("g", "t", 0) == 0, "promoted now, the replica delivers the message again"
        for _ in range(4):
            send_more()
        await until(clock, lambda: finished.query("g", "t", 0) == 1)
        assert master.log_bytes == replica.log_bytes


async def test_a_member_that_knows_of_another_log_has_nothing_sent_back_to_this_one() -> None:
    """The broker was replaced and does not know it yet: a retry in its tail would be lost with it."""
    clock = SimClock()
    async with pair(clock, role=BrokerRole.ASYNC_MASTER) as (network, master, replica):
        (outcome,) = await send(clock, master, b"x")
        master.at_work.consumer_offsets.begin("g", "t", 0, 0)
        await until(clock, lambda: replica.at_work.consumer_offsets.query("g", "t", 0) == 0)
        versions = [0]
        now = await promoted(clock, network, master, replica)
        known = now.consumer_offsets.progress("g", "t", 0)
        assert known is not None
        versions.append(known.version)
        for broker, version in ((master.at_work, versions[1]), (now, versions[0])):
            end = broker.store.log_end
            code, remark, _ = await broker.send_back.send_back(
                "g", outcome.base_log_offset, delay_level=0, max_reconsume_times=0, version=version
            )
            assert (code, "another log" in remark) == (ResponseCode.SYSTEM_BUSY, True)
            assert broker.store.log_end == end
        for broker, version in ((master.at_work, versions[0]), (now, versions[1])):
            end = broker.store.log_end
            code, _, log_end = await broker.send_back.send_back(
                "g", outcome.base_log_offset, delay_level=0, max_reconsume_times=0, version=version
            )
            assert (code, log_end) == (ResponseCode.SUCCESS, broker.store.log_end)
            assert log_end > end


async def test_a_retry_is_on_disk_before_the_message_counts_as_finished_also_under_async_flush() -> None:
    """Progress is on disk 50 ms after it has come, and the log is flushed every 200 ms."""
    clock, disk = SimClock(), SimDisk()
    options = store_options(flush=FlushDiskType.ASYNC_FLUSH)
    async with running_broker(disk, clock, store=options, clean_stop=False) as broker:
        (outcome,) = await produce(broker, incoming("t", [b"x"]))
        await broker.store.sync()
        code, *_ = await broker.send_back.send_back("g", outcome.base_log_offset, delay_level=0, max_reconsume_times=0)
        assert code is ResponseCode.SUCCESS
        without_power = next(disk.lost_states(SeededRng(1)))  # nothing survives that is not synced
    async with running_broker(without_power, clock, store=options) as broker:
        assert await read_all(broker, "t")
        assert broker.store.queue_end(SCHEDULE_TOPIC, 2) == 1


@pytest.mark.parametrize("new_time", [None, NewTime(delay_ms=60_000)])
async def test_a_recall_that_the_replica_does_not_have_claims_nothing(new_time: NewTime | None) -> None:
    clock = SimClock()
    async with pair(clock, min_in_sync=2) as (network, master, replica):
        (outcome,) = await result_of(clock, produce(master.at_work, keyed("t", key="k", unique_id="m", delay_level=3)))
        assert outcome.code is ResponseCode.SUCCESS
        await clock.advance(1)
        network.cut(master)
        with pytest.raises(RejectedError, match="in-sync replicas") as rejected:
            await result_of(clock, master.at_work.recalling.recall("t", "k", new_time))
        assert rejected.value.code is ResponseCode.SYSTEM_BUSY
        with pytest.raises(RejectedError):  # and asking again does not make it so
            await result_of(clock, master.at_work.recalling.recall("t", "k", new_time))
        await promoted(clock, network, master, replica)
        await until(clock, lambda: replica.at_work.store.queue_end("t", 0) == 1)


async def test_a_recall_is_told_when_the_replica_has_come_back() -> None:
    clock = SimClock()
    async with pair(clock, min_in_sync=2) as (network, master, replica):
        await result_of(clock, produce(master.at_work, keyed("t", key="k", unique_id="m", delay_level=5)))
        network.cut(replica)
        with pytest.raises(RejectedError):
            await result_of(clock, master.at_work.recalling.recall("t", "k"))
        network.heal()
        await until(clock, lambda: replica.at_work.replication.is_connected)
        answer = await result_of(clock, master.at_work.recalling.recall("t", "k"))
        assert outcomes(answer) == {"m": RecallOutcome.REMOVED}


async def test_an_operators_decision_that_the_replica_does_not_have_is_no_success() -> None:
    clock = SimClock()
    async with pair(clock, min_in_sync=2) as (network, master, replica):
        await result_of(clock, produce(master.at_work, half("t", b"paid", "tx-1")))
        network.cut(replica)
        ended = await result_of(
            clock,
            master.at_work.transactions.end("shop", "tx-1", TransactionState.COMMIT_MESSAGE, from_check=False),
        )
        assert ended.code is ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_a_delayed_message_is_delivered_as_soon_as_enough_replicas_are_in_sync_again() -> None:
    clock = SimClock()
    async with pair(clock, min_in_sync=2) as (network, master, replica):
        begun = clock.monotonic()
        for message in (incoming("t", [b"level"], delay_level=4), timed("t", b"timer", delay_ms=30_000, queue_id=1)):
            (outcome,) = await result_of(clock, produce(master.at_work, message))
            assert outcome.code is ResponseCode.SUCCESS
        network.cut(replica)
        in_sync = master.at_work.replication.status
        await until(clock, lambda: in_sync().in_sync_replicas == 1)
        await until(clock, lambda: clock.monotonic() - begun > 31)  # both were due, and rejected
        network.heal()
        await until(clock, lambda: in_sync().in_sync_replicas == 2)
        await clock.advance(0.1)
        assert [master.at_work.store.queue_end("t", queue_id) for queue_id in (0, 1)] == [1, 1]


async def test_after_a_change_of_masters_what_is_due_waits_for_the_replica_and_no_longer() -> None:
    clock = SimClock()
    async with pair(clock, min_in_sync=2) as (_, master, replica):
        begun = clock.monotonic()
        for message in (incoming("t", [b"level"], delay_level=2), timed("t", b"timer", delay_ms=5_000, queue_id=1)):
            await result_of(clock, produce(master.at_work, message))
        old = master.at_work.replication
        log_end, role = await result_of(clock, old.step_down(old.epoch))
        await until(clock, lambda: replica.at_work.store.log_end == log_end)
        await result_of(clock, replica.at_work.replication.promote(2, log_end, role, old.epoch))
        await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
        await until(clock, lambda: clock.monotonic() - begun > 6)  # both were due, and rejected: no replica follows yet
        assert [replica.at_work.store.queue_end("t", queue_id) for queue_id in (0, 1)] == [0, 0]
        epoch = replica.at_work.replication.epoch
        await result_of(clock, master.at_work.replication.become_replica(1, replica.name, epoch))
        await until(clock, lambda: replica.at_work.replication.status().in_sync_replicas == 2)
        await clock.advance(0.1)
        assert [replica.at_work.store.queue_end("t", queue_id) for queue_id in (0, 1)] == [1, 1]

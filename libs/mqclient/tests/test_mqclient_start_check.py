"""A consumer's start tells whether the brokers take its group (RocketMQ's checkClientInBroker; mechanisms L1, N9)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import BrokerRejectedError, IllegalStateError, Message, Producer, ServiceState
from mqclient.testing import FakeCluster, RecordingListener, consumer_of
from mqclient.transport import methods
from osenv.sim_clock import settle

NO_GROUP = broker_pb.HeartbeatAck(
    code=common_pb.SUBSCRIPTION_GROUP_NOT_EXIST,
    remark="group 'closers' does not exist and autoCreateSubscriptionGroup is false",
)
BUSY = broker_pb.HeartbeatAck(code=common_pb.SYSTEM_BUSY, remark="come back later")


async def test_a_group_that_a_broker_rejects_fails_the_start_with_the_brokers_sentence() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    before = asyncio.all_tasks()
    broker.sessions.answer = NO_GROUP
    consumer = consumer_of(cluster, RecordingListener())
    with pytest.raises(BrokerRejectedError, match="'closers' does not exist and autoCreateSubscriptionGroup") as caught:
        await consumer.start()
    assert caught.value.code == common_pb.SUBSCRIPTION_GROUP_NOT_EXIST
    assert broker.streams == []
    assert asyncio.all_tasks() == before
    assert cluster.clock.timers == 0
    with pytest.raises(IllegalStateError, match=ServiceState.START_FAILED.value):
        await consumer.start()


async def test_one_broker_of_several_that_rejects_is_enough() -> None:
    cluster, (_, strict) = FakeCluster.of("broker-a", "broker-b")
    strict.sessions.answer = NO_GROUP
    with pytest.raises(BrokerRejectedError, match=strict.address):
        await consumer_of(cluster, RecordingListener()).start()


async def test_a_rejected_consumer_takes_no_other_of_its_client_with_it() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        await settle()
        broker.sessions.answer = NO_GROUP
        with pytest.raises(BrokerRejectedError):
            await consumer_of(cluster, RecordingListener()).start()
        await settle()
        assert broker.producer_groups() == ["shop"]
        assert [one.group for one in broker.sessions.heartbeats[-1].producers] == ["shop"]
        assert not broker.sessions.heartbeats[-1].consumers
        await producer.send(Message("orders", b"x"))


async def test_a_broker_that_rejects_for_now_delays_the_start_and_does_not_fail_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.sessions.answer = BUSY
    listener = RecordingListener()
    consumer = consumer_of(cluster, listener)
    starting = asyncio.create_task(consumer.start())
    await cluster.clock.advance(10.0)
    await starting
    assert "could not join its group yet" in caplog.text
    broker.sessions.answer = broker_pb.HeartbeatAck()
    broker.put("orders", 0, b"x")
    await cluster.clock.advance(31.0)  # the next heartbeat is accepted
    assert listener.bodies == [b"x"]
    await consumer.shutdown()


async def test_a_broker_that_answers_no_heartbeat_delays_the_start_by_three_seconds() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    consumer = consumer_of(cluster, RecordingListener())
    starting = asyncio.create_task(consumer.start())
    await cluster.clock.advance(2.9)
    assert not starting.done()
    await cluster.clock.advance(0.2)
    await starting
    leaving = asyncio.create_task(consumer.shutdown())
    await cluster.clock.advance(10.0)
    await leaving


async def test_a_broker_that_has_just_left_the_routes_delays_no_start() -> None:
    cluster, (_, gone) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        await cluster.clock.advance(5.0)
        gone.down = True
        gone.break_streams()
        await cluster.clock.advance(25.5)  # the refresh has come, the cleaning has not
        async with consumer_of(cluster, RecordingListener()):  # the clock stands still
            pass


async def test_only_the_answer_to_the_heartbeat_that_names_the_group_counts() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        await settle()
        (session,) = [stream for stream in broker.streams if stream.path == methods.SESSION.path]
        broker.silent = True
        await cluster.clock.advance(1.1)  # the producer's next heartbeat, which is not answered yet
        starting = asyncio.create_task(consumer_of(cluster, RecordingListener()).start())
        await settle()
        session.answer(broker_pb.SessionResponse(heartbeat_ack=broker_pb.HeartbeatAck()))
        await settle()
        assert not starting.done()
        session.answer(broker_pb.SessionResponse(heartbeat_ack=NO_GROUP))
        with pytest.raises(BrokerRejectedError):
            await starting
        broker.silent = False


async def test_a_group_rejected_after_a_start_without_brokers_is_not_held_against_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.create_topic("payments", 1)
    (name_server,) = cluster.name_servers.values()
    name_server.down = True
    first = consumer_of(cluster, RecordingListener())
    await first.start()
    name_server.down = False
    broker.sessions.answer = NO_GROUP
    await cluster.clock.advance(31.0)
    assert "rejected a heartbeat: SUBSCRIPTION_GROUP_NOT_EXIST" in caplog.text
    second = consumer_of(cluster, RecordingListener(), group="payers")
    await second.start()
    await second.shutdown()
    await first.shutdown()


async def test_a_second_group_is_rejected_by_its_own_name_although_the_first_one_is_rejected_too() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    (name_server,) = cluster.name_servers.values()
    name_server.down = True
    first = consumer_of(cluster, RecordingListener())
    await first.start()
    name_server.down = False
    both = "group 'closers' does not exist; group 'payers' does not exist"
    broker.sessions.answer = broker_pb.HeartbeatAck(code=common_pb.SUBSCRIPTION_GROUP_NOT_EXIST, remark=both)
    await cluster.clock.advance(31.0)
    with pytest.raises(BrokerRejectedError, match="'payers' does not exist"):
        await consumer_of(cluster, RecordingListener(), group="payers").start()
    await first.shutdown()

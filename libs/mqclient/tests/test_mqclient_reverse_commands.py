"""What brokers ask of clients: the table of commands, and the reset of a group's offsets (mechanism L11)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import pytest

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient import ConnectionLostError, ConsumeStatus, Message, MessageExt, Producer
from mqclient.connection.session import Registrations, ReverseCommands
from mqclient.lifecycle import BackgroundTasks
from mqclient.testing import FakeBroker, FakeCluster, RecordingListener, consumer_of
from mqclient.transport import methods
from osenv import SimClock
from osenv.sim_clock import settle

KEY = ("closers", "orders", 0)  # the offset of the queue that most tests are about


def reset(broker: FakeBroker, *offsets: tuple[str, int, int], group: str = "closers") -> None:
    """What a broker does when an operator resets a group: it takes the offsets, and tells the members."""
    command = broker_pb.ResetConsumerOffset(group=group)
    for topic, queue_id, offset in offsets:
        broker.progress.set((group, topic, queue_id), offset)
        version = broker.progress.versions[group, topic, queue_id]
        command.queues.add(topic=topic, queue_id=queue_id, offset=offset, version=version)
    broker.sessions.tell(broker_pb.SessionResponse(reset_consumer_offset=command))


class NoBrokers:
    def broker_name(self, address: str) -> str | None:
        return None

    def is_master(self, address: str) -> bool:
        return False

    async def refresh_after_change(self, topics: Iterable[str]) -> None:
        raise AssertionError(f"nothing has changed, not even {topics}")


def test_every_command_of_the_protocol_is_in_the_table() -> None:
    commands = ReverseCommands(Registrations("client"), NoBrokers(), BackgroundTasks(SimClock()))
    fields = broker_pb.SessionResponse.DESCRIPTOR.oneofs_by_name["command"].fields
    assert {field.name for field in fields} == commands.names | {"heartbeat_ack"}


async def test_an_unknown_command_and_one_that_fails_are_logged_and_the_session_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="mqclient.connection.session")
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener()
    async with consumer_of(cluster, listener) as consumer:
        broker.sessions.tell(broker_pb.SessionResponse())
        await settle()
        assert "does not know" in caplog.text
        broker.sessions.tell(
            broker_pb.SessionResponse(consumer_ids_changed=broker_pb.ConsumerIdsChanged(group="others"))
        )
        await settle()
        assert "the group others, which has left this client" in caplog.text
        rebalance, consumer.rebalance_now = consumer.rebalance_now, None  # type: ignore[method-assign, assignment]
        broker.sessions.tell(
            broker_pb.SessionResponse(consumer_ids_changed=broker_pb.ConsumerIdsChanged(group="closers"))
        )
        await settle()
        assert "consumer_ids_changed of 127.0.0.1:10911 could not be carried out" in caplog.text
        consumer.rebalance_now = rebalance  # type: ignore[method-assign]
        broker.put("orders", 0, b"x")
        await settle()
        assert listener.bodies == [b"x"]
        assert broker.members("closers")


async def test_a_reset_drops_what_was_pulled_and_goes_on_from_the_given_offsets() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    for number in range(10):
        broker.put("orders", number % 2, b"%d" % number)
    listener = RecordingListener()
    async with consumer_of(cluster, listener):
        await settle()
        await cluster.clock.advance(10.1)
        assert broker.offsets["closers", "orders", 0] == broker.offsets["closers", "orders", 1] == 5
        listener.batches.clear()
        reset(broker, ("orders", 0, 3))
        await settle()
        assert listener.bodies == [b"6", b"8"]
        await cluster.clock.advance(5.1)
        assert broker.offsets["closers", "orders", 0] == 5
        reset(broker, ("orders", 0, 4), ("orders", 1, 0))
        await settle()
        assert sorted(listener.bodies[2:]) == [b"1", b"3", b"5", b"7", b"8", b"9"]
    assert [broker.offsets["closers", "orders", number] for number in range(2)] == [5, 5]


async def test_what_a_listener_still_has_at_a_reset_counts_no_more() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for number in range(6):
        broker.put("orders", 0, b"%d" % number)
    broker.offsets["closers", "orders", 0] = 2
    release = asyncio.Event()
    heard: list[bytes] = []

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        heard.append(messages[0].body)
        if len(heard) <= 2:
            await release.wait()
            return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.CONSUME_SUCCESS

    async with consumer_of(cluster, listener, consume_concurrency=2):
        await settle()
        assert heard == [b"2", b"3"]  # and 4 and 5 wait
        reset(broker, ("orders", 0, 5))
        release.set()
        await settle()
        assert heard == [b"2", b"3", b"5"]
        assert broker.send_backs == []
        await cluster.clock.advance(15.1)
        assert broker.offsets["closers", "orders", 0] == 6


async def test_no_old_offset_is_committed_over_the_new_one() -> None:
    """A commit of the old offset is under way when the reset comes, and the broker carries it out afterwards."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for number in range(8):
        broker.put("orders", 0, b"%d" % number)
    release = asyncio.Event()
    release.set()

    async def listener(_: list[MessageExt]) -> ConsumeStatus:
        await release.wait()
        return ConsumeStatus.CONSUME_SUCCESS

    async with consumer_of(cluster, listener):
        await settle()
        on_its_way = broker.unary_gate = asyncio.Event()
        await cluster.clock.advance(10.1)  # the offset 8 has left, and has not arrived
        release.clear()
        broker.unary_gate = None
        reset(broker, ("orders", 0, 3))
        await settle()
        on_its_way.set()
        await settle()
        assert [(one.offset, one.version) for request in broker.commits for one in request.queues][-1] == (8, 0)
        assert broker.offsets["closers", "orders", 0] == 3
        await cluster.clock.advance(60.0)
        assert broker.offsets["closers", "orders", 0] == 3
        release.set()


async def test_offsets_from_before_a_reset_are_written_when_they_are_reached_again() -> None:
    """Also when the commit of the reset itself has failed: what is known of the broker's offsets is known no more."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for number in range(5):
        broker.put("orders", 0, b"%d" % number)
    async with consumer_of(cluster, RecordingListener()):
        await cluster.clock.advance(10.1)
        assert broker.offsets["closers", "orders", 0] == 5
        broker.unary_errors[methods.UPDATE_CONSUMER_OFFSET.path] = [ConnectionLostError("gone")]
        reset(broker, ("orders", 0, 2))
        await cluster.clock.advance(5.1)
        assert broker.offsets["closers", "orders", 0] == 5


async def test_a_reset_while_a_queue_is_being_assigned_is_not_lost() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for number in range(5):
        broker.put("orders", 0, b"%d" % number)
    broker.offsets["closers", "orders", 0] = 5
    listener = RecordingListener()
    consumer = consumer_of(cluster, listener)
    starting = asyncio.create_task(consumer.start())
    answer = broker._unary[methods.QUERY_CONSUMER_OFFSET.path]

    def answer_and_reset(request: broker_pb.QueryConsumerOffsetRequest) -> broker_pb.QueryConsumerOffsetResponse:
        response: broker_pb.QueryConsumerOffsetResponse = answer(request)
        if request.queue.topic == "orders" and not broker.progress.versions[KEY]:
            broker.progress.set(KEY, 2)
            now = broker_pb.QueueProgress(topic="orders", queue_id=0, offset=2, version=1)
            consumer.reset_offsets("broker-a", [now])
        return response

    broker._unary[methods.QUERY_CONSUMER_OFFSET.path] = answer_and_reset
    await starting
    await settle()
    assert listener.bodies == [b"2", b"3", b"4"]
    await consumer.shutdown()
    assert broker.offsets["closers", "orders", 0] == 5


async def test_a_reset_concerns_only_the_group_and_the_queues_that_it_names() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    broker.create_topic("payments", 1)
    for queue_id in range(2):
        broker.put("orders", queue_id, b"x")
    listener = RecordingListener()
    async with consumer_of(cluster, listener), Producer("shop", cluster.url) as producer:
        await settle()
        assert len(listener.bodies) == 2
        polls = len(broker.polled_offsets)
        reset(broker, ("orders", 0, 0), group="others")
        reset(broker, ("payments", 0, 0), ("orders", 7, 0))
        await settle()
        assert len(listener.bodies) == 2
        assert len(broker.polled_offsets) == polls
        await producer.send(Message("orders", b"y"))
        await settle()
        assert len(listener.bodies) == 3

"""Queues that a topic gets after a group has subscribed to it are read from their first message (ADR 90)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin, ClientConfig, ConsumeFromWhere, Message, MessageModel, Producer, PushConsumer
from mqclient.errors import BrokerUnreachableError
from mqclient.testing import FakeBroker, FakeCluster, RecordingListener, consumer_of, made_consumer
from mqclient.transport import methods
from osenv.sim_clock import settle

LAST, TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
REFRESH_S = 51.0  # later than the balance that follows the next look at the routes
OLD = b"from before the group"

Change = Callable[[FakeCluster], FakeBroker]


def more_queues(cluster: FakeCluster) -> FakeBroker:
    """The topic gets a third queue."""
    (broker,) = cluster.brokers.values()
    broker.create_topic("orders", 3)
    return broker


def another_broker(cluster: FakeCluster) -> FakeBroker:
    """A second broker gets the topic, with three queues."""
    broker = cluster.add_broker("broker-0")  # before the other one by its name
    broker.create_topic("orders", 3)
    return broker


def old_topic(*names: str) -> tuple[FakeCluster, list[FakeBroker]]:
    """A topic whose queues have messages that no new group wants."""
    cluster, brokers = FakeCluster.of(*names, queue_count=2)
    for broker in brokers:
        for queue_id in range(2):
            broker.put("orders", queue_id, OLD)
    return cluster, brokers


def member(cluster: FakeCluster, listener: RecordingListener, name: str = "m0") -> PushConsumer:
    return consumer_of(cluster, listener, member=name, consume_from_where=LAST)


@pytest.mark.parametrize("change", [more_queues, another_broker])
@pytest.mark.parametrize("where", [LAST, TIMESTAMP])
async def test_a_running_group_misses_nothing_of_a_new_queue(change: Change, where: ConsumeFromWhere) -> None:
    """The producer knows the queue before the consumer does."""
    cluster, _ = old_topic("broker-a")
    listener = RecordingListener()
    await cluster.clock.advance(5_000.0)
    async with consumer_of(cluster, listener, consume_from_where=where):
        await settle()
        broker = change(cluster)
        broker.put("orders", 2, b"0")
        await cluster.clock.advance(REFRESH_S)
        broker.put("orders", 2, b"1")
        await settle()
        assert listener.bodies == [b"0", b"1"]


@pytest.mark.parametrize("change", [more_queues, another_broker])
@pytest.mark.parametrize("members", [1, 3])
async def test_a_group_whose_members_were_away_misses_nothing_of_a_new_queue(change: Change, members: int) -> None:
    cluster, _ = old_topic("broker-a")
    async with member(cluster, RecordingListener()):
        await settle()
    broker = change(cluster)
    for queue_id in range(3):
        broker.put("orders", queue_id, b"new %d" % queue_id)
    listener = RecordingListener()
    consumers = [member(cluster, listener, f"m{number}") for number in range(members)]
    starting = [asyncio.ensure_future(consumer.start()) for consumer in consumers]
    await cluster.clock.advance(5.0)
    await asyncio.gather(*starting)
    assert sorted(listener.bodies) == [b"new 0", b"new 1", b"new 2"]
    for consumer in consumers:
        await consumer.shutdown()


@pytest.mark.parametrize("lag_s", [0.0, 0.3])
async def test_a_new_group_wants_nothing_of_an_old_topic_whichever_member_begins_where(lag_s: float) -> None:
    """Each of two members gets the queues of one of two brokers."""
    cluster, brokers = old_topic("broker-a", "broker-b")
    listener = RecordingListener()
    first, second = (member(cluster, listener, name) for name in ("m0", "m1"))
    await first.start()
    await cluster.clock.advance(lag_s)
    await second.start()
    await cluster.clock.advance(5.0)
    assert listener.bodies == []
    for broker in brokers:
        for queue_id in range(2):
            broker.put("orders", queue_id, b"new")
    await settle()
    assert listener.bodies == [b"new"] * 4
    await first.shutdown()
    await second.shutdown()


async def test_a_member_that_cannot_ask_every_broker_waits_before_it_calls_a_group_new() -> None:
    cluster, (known, new) = old_topic("broker-a", "broker-b")
    known.offsets["closers", "orders", 0] = known.offsets["closers", "orders", 1] = 1
    new.put("orders", 0, b"new")
    known.unary_errors[methods.QUERY_CONSUMER_OFFSET.path] += [BrokerUnreachableError("cut off")] * 3
    listener = RecordingListener()
    async with member(cluster, listener):
        await settle()
        assert listener.bodies == []
        await cluster.clock.advance(5.0)
        assert sorted(listener.bodies) == sorted([OLD, OLD, b"new"])


async def test_a_topic_that_was_deleted_and_made_again_is_read_from_its_first_message() -> None:
    async with EmbeddedBroker("deleted") as broker, Admin(broker.url) as admin:
        await admin.update_topic("orders", read_queue_count=1, write_queue_count=1)
        listener = RecordingListener()
        consumer = made_consumer("closers", broker.url, consume_from_where=LAST)
        consumer.subscribe("orders")
        consumer.register_message_listener(listener)
        async with consumer, Producer("shop", broker.url) as producer:
            await broker.clock.advance(0.1)
            await admin.delete_topic("orders")
            await admin.update_topic("orders", read_queue_count=1, write_queue_count=1)
            await producer.send(Message("orders", b"new"))
            await broker.clock.advance(60.0)
            assert listener.bodies == [b"new"]


def broadcaster(cluster: FakeCluster, listener: RecordingListener, folder: Path) -> PushConsumer:
    consumer = made_consumer(
        "screens",
        cluster.url,
        message_model=MessageModel.BROADCASTING,
        client_config=ClientConfig(instance_name="m0"),
        consume_from_where=LAST,
        local_offset_store_dir=folder,
    )
    consumer.subscribe("orders")
    consumer.register_message_listener(listener)
    return consumer


@pytest.mark.parametrize("change", [more_queues, another_broker])
@pytest.mark.parametrize("away", [False, True])
async def test_a_broadcasting_member_misses_nothing_of_a_new_queue(
    change: Change, tmp_path: Path, *, away: bool
) -> None:
    cluster, _ = old_topic("broker-a")
    listener = RecordingListener()
    async with broadcaster(cluster, listener, tmp_path):
        await settle()
        if not away:
            change(cluster).put("orders", 2, b"new")
            await cluster.clock.advance(REFRESH_S)
            assert listener.bodies == [b"new"]
    if away:
        change(cluster).put("orders", 2, b"new")
        async with broadcaster(cluster, listener, tmp_path):
            await listener.has(1)
        assert listener.bodies == [b"new"]

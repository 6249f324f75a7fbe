"""Start, shutdown and wrong use of a consumer (mechanisms L1, L2, L4, C11, C22)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mqclient import (
    ClientConfig,
    ConnectionLostError,
    ConsumerConfig,
    ConsumeStatus,
    IllegalArgumentError,
    IllegalGroupError,
    IllegalStateError,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from mqclient.testing import FakeCluster, RecordingListener, consumer_of
from mqclient.transport import methods
from osenv.sim_clock import settle


async def test_shutdown_lets_listeners_finish_commits_and_leaves_nothing() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    before = asyncio.all_tasks()
    release = asyncio.Event()

    async def listener(_: list[MessageExt]) -> ConsumeStatus:
        await release.wait()
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = consumer_of(cluster, listener, consume_concurrency=2)
    await consumer.start()
    for number in range(5):
        broker.put("orders", 0, b"%d" % number)
    await settle()
    leaving = asyncio.create_task(consumer.shutdown())
    await settle()
    assert not leaving.done()
    release.set()
    await leaving
    assert broker.offsets["closers", "orders", 0] == 2  # the two that ran; three had not begun
    assert broker.members("closers") == []
    assert broker.streams == []
    assert asyncio.all_tasks() == before
    assert cluster.clock.timers == 0


async def test_shutdown_is_bounded_when_a_listener_hangs() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    before = asyncio.all_tasks()

    async def listener(_: list[MessageExt]) -> ConsumeStatus:
        await asyncio.Event().wait()
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = consumer_of(cluster, listener)
    await consumer.start()
    broker.put("orders", 0, b"x")
    await settle()
    leaving = asyncio.create_task(consumer.shutdown(timeout_s=2.0))
    await cluster.clock.advance(2.1)
    await leaving
    assert broker.offsets["closers", "orders", 0] == 0
    assert asyncio.all_tasks() == before


async def test_rejected_commit_is_written_with_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with consumer_of(cluster, RecordingListener()):
        broker.put("orders", 0, b"x")
        broker.unary_errors[methods.UPDATE_CONSUMER_OFFSET.path] = [ConnectionLostError("gone")]
        await cluster.clock.advance(10.1)
        assert "not committed" in caplog.text
        await cluster.clock.advance(5.1)
        assert broker.offsets["closers", "orders", 0] == 1


@pytest.mark.mechanism("L2")
@pytest.mark.parametrize("group", ["", "a b", "a" * 256])
def test_illegal_consumer_group_is_rejected(group: str) -> None:
    with pytest.raises(IllegalGroupError):
        PushConsumer(group, "mq://127.0.0.1:9876")


@pytest.mark.parametrize(
    "options",
    [
        {"consume_thread_min": 0},
        {"consume_thread_min": 9, "consume_thread_max": 8},
        {"consume_message_batch_max_size": -1},
        {"pull_batch_size": 1.5},
        {"pull_batch_size": 1_025},
        {"max_reconsume_times": -1},
        {"consume_timeout_s": 0},
        {"consume_timestamp_ms": "now"},
        {"suspend_current_queue_time_s": 0},
        {"pull_interval_s": -1},
    ],
)
def test_senseless_consumer_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(IllegalArgumentError, match=f"{[*options][-1]} has to be"):
        ConsumerConfig(**options)


async def test_consumer_needs_listener_and_subscription_and_takes_no_later_ones() -> None:
    cluster, (_,) = FakeCluster.of("broker-a")
    bare = PushConsumer("closers", cluster.url)
    with pytest.raises(IllegalArgumentError, match="subscription and a listener"):
        await bare.start()
    with pytest.raises(IllegalArgumentError):
        bare.subscribe("bad topic")
    consumer = consumer_of(cluster, RecordingListener())
    async with consumer:
        with pytest.raises(IllegalStateError, match="RUNNING"):
            consumer.subscribe("payments")
        with pytest.raises(IllegalStateError):
            consumer.register_message_listener(RecordingListener())
        with pytest.raises(IllegalStateError, match="instance_name"):
            await consumer_of(cluster, RecordingListener()).start()


@pytest.mark.mechanism("C11")
async def test_heartbeat_names_group_subscriptions_and_retry_topic() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with consumer_of(cluster, RecordingListener(), tags="b || a") as consumer:
        data = consumer.consumer_data()
        assert (data.group, data.consume_from_where) == ("closers", 1)
        assert [(item.topic, item.expression) for item in data.subscriptions] == [
            ("orders", "a || b"),
            ("%RETRY%closers", "*"),
        ]
        assert broker.members("closers")


async def test_cancelled_start_leaves_nothing_behind() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    before = asyncio.all_tasks()
    broker.silent = True  # takes the heartbeat and never acknowledges it
    consumer = consumer_of(cluster, RecordingListener())
    starting = asyncio.create_task(consumer.start())
    await settle()
    assert not starting.done()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert starting.cancelled()
    assert asyncio.all_tasks() == before
    assert cluster.clock.timers == 0
    with pytest.raises(IllegalStateError, match="START_FAILED"):
        await consumer.start()


async def test_consumer_that_leaves_takes_its_tasks_with_it_and_not_the_producers() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    config = ClientConfig(instance_name="shared")
    async with Producer("shop", cluster.url, client_config=config) as producer:
        await producer.send(Message("orders", b"x"))
        await settle()
        before = asyncio.all_tasks()
        async with consumer_of(cluster, RecordingListener(), member="shared"):
            await settle()
            assert len([stream for stream in broker.streams if stream.path == methods.SESSION.path]) == 1
            assert broker.members("closers")
            assert broker.producer_groups() == ["shop"]
        await settle()
        names = {task.get_name() for task in asyncio.all_tasks() - before}
        # What stays belongs to the connection, and goes with the producer.
        assert {name.rsplit(" ", 1)[0] for name in names} <= {"mqclient poll", f"mqclient read {methods.POLL.path}"}
        assert broker.members("closers") == []
        await producer.send(Message("orders", b"y"))


async def test_a_broker_that_does_not_know_its_members_yet_has_nothing_begun_twice() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    got: list[bytes] = []
    release = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        got.extend(message.body for message in messages)
        await release.wait()
        return ConsumeStatus.CONSUME_SUCCESS

    async with consumer_of(cluster, listener) as consumer:
        broker.put("orders", 0, b"slow")
        await settle()
        broker.restart()
        consumer.rebalance_now()
        await settle()
        members = [broker.members("closers")]
        await cluster.clock.advance(5.0)
        members.append(broker.members("closers"))
        release.set()
        await settle()
    assert [len(one) for one in members] == [0, 1]
    assert got == [b"slow"]

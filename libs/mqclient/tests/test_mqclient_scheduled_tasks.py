"""What a client instance does again and again, and in which order it begins (mechanisms L5-L9, N6, N7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mqclient import Admin, ClientConfig, Message, NoRouteError, Producer
from mqclient.client_instance import acquire_instance
from mqclient.testing import FakeCluster, RecordingListener, consumer_of
from mqclient.transport import methods
from mqproto.names import DEFAULT_TOPIC
from osenv.sim_clock import settle


class Source:
    """Tells the name servers that the test has put into `addresses`, or raises."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked = 0

    async def look_up(self) -> tuple[str, ...]:
        self.asked += 1
        if not self.addresses:
            raise NoRouteError("the name servers are unknown")
        return self.addresses


def sessions(broker_streams: list[Any]) -> int:
    return len([stream for stream in broker_streams if stream.path == methods.SESSION.path])


def test_the_table_has_rocketmqs_names_delays_and_periods() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    cluster.name_server_source = Source("name-server-0")

    async def table() -> list[tuple[str, float, float]]:
        instance = acquire_instance(cluster.url, ClientConfig())
        try:
            return [(task.name, task.first_delay_s, task.period_s) for task in instance.scheduled_tasks()]
        finally:
            await instance.release()

    assert asyncio.run(table()) == [
        ("name server addresses", 10.0, 120.0),
        ("route refresh", 0.01, 30.0),
        ("heartbeats", 1.0, 30.0),
        ("consumer offsets", 10.0, 5.0),
    ]


@pytest.mark.mechanism("N7", "L6")
async def test_addresses_are_looked_up_at_the_start_after_ten_seconds_and_then_every_two_minutes() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    source = cluster.name_server_source = Source("name-server-0")
    async with Admin(cluster.url):
        await settle()
        assert source.asked == 1
        for just_before_s, just_after_s, expected in ((9.9, 0.2, 2), (119.8, 0.2, 3), (119.8, 0.2, 4)):
            await cluster.clock.advance(just_before_s)
            assert source.asked == expected - 1
            await cluster.clock.advance(just_after_s)
            assert source.asked == expected


@pytest.mark.mechanism("N7", "L6")
async def test_addresses_of_the_url_are_never_looked_up() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        instance = acquire_instance(cluster.url, ClientConfig())
        assert "name server addresses" not in [task.name for task in instance.scheduled_tasks()]
        await cluster.clock.advance(600.0)


@pytest.mark.mechanism("N6", "L7")
async def test_every_cached_route_is_refreshed_after_ten_milliseconds_and_then_every_thirty_seconds() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.create_topic("payments")
    asked = cluster.name_servers["name-server-0"].asked
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        asked.clear()
        await cluster.clock.advance(0.009)
        assert asked == []
        await cluster.clock.advance(0.002)
        assert asked == ["orders"]
        await producer.send(Message("payments", b"x"))
        asked.clear()
        await cluster.clock.advance(29.99)
        assert asked == []
        await cluster.clock.advance(0.02)
        assert asked == ["orders", "payments"]


@pytest.mark.mechanism("N6")
async def test_a_dead_broker_is_noticed_by_the_next_refresh_and_not_before() -> None:
    cluster, (dead, _) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        await cluster.clock.advance(0.02)
        dead.down = True
        instance = acquire_instance(cluster.url, ClientConfig())
        await cluster.clock.advance(29.97)
        queues = await instance.routes.publish_queues("orders")
        assert {queue.broker_name for queue in queues} == {"broker-a", "broker-b"}
        await cluster.clock.advance(0.03)
        queues = await instance.routes.publish_queues("orders")
        assert {queue.broker_name for queue in queues} == {"broker-b"}


async def test_a_dead_broker_leaves_the_guess_for_a_topic_that_does_not_exist_yet() -> None:
    cluster = FakeCluster()
    first = cluster.add_broker("broker-a")
    async with Producer("shop", cluster.url):
        instance = acquire_instance(cluster.url, ClientConfig())
        assert {queue.broker_name for queue in await instance.routes.publish_queues("fresh")} == {"broker-a"}
        first.down = True
        cluster.add_broker("broker-b")
        await cluster.clock.advance(31.0)
        assert {queue.broker_name for queue in await instance.routes.publish_queues("fresh")} == {"broker-b"}
        assert DEFAULT_TOPIC in cluster.name_servers["name-server-0"].asked


@pytest.mark.mechanism("L8")
async def test_brokers_hear_a_heartbeat_after_a_second_and_then_every_thirty_seconds() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        await settle()
        assert len(broker.sessions.heartbeats) == 1  # the session has just been opened
        for just_before_s, just_after_s, expected in ((0.9, 0.2, 2), (29.8, 0.2, 3), (29.8, 0.2, 4)):
            await cluster.clock.advance(just_before_s)
            assert len(broker.sessions.heartbeats) == expected - 1
            await cluster.clock.advance(just_after_s)
            assert len(broker.sessions.heartbeats) == expected
        assert [[one.group for one in beat.producers] for beat in broker.sessions.heartbeats] == [["shop"]] * 4


async def test_every_change_and_every_new_session_sends_a_whole_heartbeat_at_once() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        await settle()
        async with consumer_of(cluster, RecordingListener()):
            assert [one.group for one in broker.sessions.heartbeats[-1].consumers] == ["closers"]
            broker.break_streams()
            count = len(broker.sessions.heartbeats)
            await cluster.clock.advance(0.25)  # the backoff before it is opened anew
            assert len(broker.sessions.heartbeats) == count + 1
            assert [one.group for one in broker.sessions.heartbeats[-1].consumers] == ["closers"]
        await settle()
        assert [one.group for one in broker.sessions.heartbeats[-1].consumers] == []
        assert [one.group for one in broker.sessions.heartbeats[-1].producers] == ["shop"]


@pytest.mark.mechanism("L8")
async def test_a_broker_on_no_route_is_left_by_the_next_cleaning_and_not_before() -> None:
    cluster, (_, gone) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        await cluster.clock.advance(5.0)  # the cleaning comes at 1 s, 31 s, 61 s, the refresh at 0.01 s, 30.01 s
        assert sessions(gone.streams) == 1
        del gone.topics["orders"]
        await cluster.clock.advance(25.5)
        instance = acquire_instance(cluster.url, ClientConfig())
        assert {queue.broker_name for queue in await instance.routes.publish_queues("orders")} == {"broker-a"}
        assert sessions(gone.streams) == 1
        await cluster.clock.advance(0.6)
        assert sessions(gone.streams) == 0
        gone.create_topic("orders")
        await cluster.clock.advance(30.0)
        assert sessions(gone.streams) == 1


async def test_a_broker_on_no_route_keeps_its_connection_while_a_message_waits_for_its_answer() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    other = cluster.add_broker("broker-b")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        broker.silent = True
        send = asyncio.create_task(producer.send(Message("orders", b"y"), timeout=60.0))
        await settle()
        frame = broker.frames[-1]
        del broker.topics["orders"]
        other.create_topic("orders")
        await cluster.clock.advance(32.0)
        broker.create_topic("orders")
        broker.answer_frame(frame)
        assert (await send).message_queue.broker_name == "broker-a"


async def test_an_admins_connections_are_closed_when_they_were_not_used_for_a_period() -> None:
    cluster, (_, unrouted) = FakeCluster.of("broker-a", "broker-b", topic=None)
    async with Admin(cluster.url) as admin:
        await admin.broker_statuses()
        mine = [channel for channel in cluster.channels if channel.address == unrouted.address]
        await cluster.clock.advance(1.1)
        assert not any(channel.closed for channel in mine)
        await cluster.clock.advance(29.8)
        assert not any(channel.closed for channel in mine)
        await cluster.clock.advance(0.2)
        assert all(channel.closed for channel in mine)
        assert len(await admin.broker_statuses()) == 2


@pytest.mark.mechanism("L9", "C22")
async def test_consumer_offsets_are_written_after_ten_seconds_and_then_every_five() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with consumer_of(cluster, RecordingListener()):
        for committed, just_before_s, just_after_s in ((1, 9.9, 0.2), (2, 4.8, 0.2), (3, 4.8, 0.2)):
            broker.put("orders", 0, b"x")
            await cluster.clock.advance(just_before_s)
            assert len(broker.commits) == committed - 1
            await cluster.clock.advance(just_after_s)
            assert [commit.queues[0].offset for commit in broker.commits] == [*range(1, committed + 1)]


@pytest.mark.mechanism("L9")
async def test_offsets_that_one_broker_does_not_take_delay_no_other_broker() -> None:
    cluster, (hangs, answers) = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    async with consumer_of(cluster, RecordingListener()):
        hangs.put("orders", 0, b"x")
        answers.put("orders", 0, b"x")
        await settle()
        hangs.unary_gate = asyncio.Event()
        await cluster.clock.advance(10.1)
        assert len(answers.commits) == 1
        assert hangs.commits == []
        hangs.unary_gate.set()
        await cluster.clock.advance(10.0)
        assert hangs.commits


async def test_an_action_that_fails_is_logged_and_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    consumer = consumer_of(cluster, RecordingListener())
    async with consumer:
        persist, consumer.persist_offsets = consumer.persist_offsets, None  # type: ignore[method-assign, assignment]
        await cluster.clock.advance(10.1)
        assert "mqclient consumer offsets failed" in caplog.text
        consumer.persist_offsets = persist  # type: ignore[method-assign]
        broker.put("orders", 0, b"x")
        await cluster.clock.advance(5.0)
        assert broker.offsets["closers", "orders", 0] == 1


@pytest.mark.mechanism("L5", "C11")
async def test_what_runs_in_the_background_begins_in_rocketmqs_order() -> None:
    """Mechanism L5: channel, scheduled tasks, pull service, rebalance service;
    what pulling fills is ready before it.
    """
    cluster, _ = FakeCluster.of("broker-a", queue_count=1)
    cluster.name_server_source = Source("name-server-0")
    begun: list[asyncio.Task[Any]] = []

    def note(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        begun.append(asyncio.Task(coroutine, loop=loop, **options))
        return begun[-1]

    loop = asyncio.get_running_loop()
    loop.set_task_factory(note)
    try:
        async with consumer_of(cluster, RecordingListener(), consume_concurrency=1):
            order = [
                "mqclient first look-up of name servers",
                "mqclient name server addresses",
                "mqclient route refresh",
                "mqclient heartbeats",
                "mqclient consumer offsets",
                "mqclient consume 0",
                "mqclient session 127.0.0.1:10911",
                "mqclient rebalance closers",
                "mqclient pull orders@broker-a:0",
            ]
            assert [task.get_name() for task in begun if task.get_name() in order] == order
    finally:
        loop.set_task_factory(None)

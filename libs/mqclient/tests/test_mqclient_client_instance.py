"""Routes, selectors, wrong states and settings, the shared instance, shutdown (mechanisms N6, N8, P13, L1-L4, L14)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BrokerUnavailableError,
    ClientConfig,
    ConnectionLostError,
    IllegalArgumentError,
    IllegalGroupError,
    IllegalStateError,
    Message,
    MessageQueue,
    MessageRejectedError,
    MQClientError,
    NoRouteError,
    Producer,
    SendStatus,
    UnknownTransportError,
)
from mqclient.testing import FakeCluster
from mqproto.names import DEFAULT_TOPIC
from osenv.sim_clock import settle


@pytest.mark.mechanism("N8")
async def test_new_topic_is_created_by_its_first_message() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", topic=None)
    async with Producer("shop", cluster.url) as producer:
        queues = {(await producer.send(Message("fresh", b"x"))).message_queue.queue_id for _ in range(16)}
    assert queues == {0, 1, 2, 3}  # 4 of the default topic's 8 (mechanism N8)
    assert broker.topics["fresh"].write_queue_count == 4
    assert DEFAULT_TOPIC in cluster.name_servers["name-server-0"].asked


async def test_topic_that_no_broker_has_or_creates_has_no_route() -> None:
    cluster = FakeCluster()
    cluster.add_broker("broker-a", auto_create=False)
    async with Producer("shop", cluster.url) as producer:
        with pytest.raises(NoRouteError, match="'orders'"):
            await producer.send(Message("orders", b"x"))


async def test_topic_that_may_not_be_written_has_no_route() -> None:
    cluster = FakeCluster()
    cluster.add_broker("broker-a").create_topic("orders", perm=4)
    async with Producer("shop", cluster.url) as producer:
        with pytest.raises(NoRouteError, match="has no writable queue"):
            await producer.send(Message("orders", b"x"))


async def test_any_name_server_will_do_and_routes_outlive_them_all() -> None:
    cluster = FakeCluster(name_servers=3)
    cluster.add_broker("broker-a").create_topic("orders")
    first, second, third = cluster.name_servers.values()
    async with Producer("shop", cluster.url) as producer:
        first.down = second.down = True
        await producer.send(Message("orders", b"x"))
        third.down = True
        await cluster.clock.advance(60.0)
        await producer.send(Message("orders", b"x"))
        third.down, third.knows_nothing = False, True
        await cluster.clock.advance(60.0)
        await producer.send(Message("orders", b"x"))
        third.down = True
        with pytest.raises(NoRouteError, match="no name server answered"):
            await producer.send(Message("other", b"x"))


async def test_route_is_refreshed_every_thirty_seconds() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        late = cluster.add_broker("broker-b")
        late.create_topic("orders")
        await cluster.clock.advance(31.0)
        results = [await producer.send(Message("orders", b"x")) for _ in range(8)]
        assert {result.message_queue.broker_name for result in results} == {"broker-a", "broker-b"}
        assert late.producer_groups() == ["shop"]
        late.down = True
        late.break_streams()
        await cluster.clock.advance(31.0)
        results = [await producer.send(Message("orders", b"x")) for _ in range(8)]
        assert {result.message_queue.broker_name for result in results} == {"broker-a"}


@pytest.mark.mechanism("N6")
async def test_first_sends_ask_once_for_the_route() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await asyncio.gather(*(producer.send(Message("orders", b"x")) for _ in range(50)))
    assert cluster.name_servers["name-server-0"].asked == ["orders"]


async def test_selector_chooses_and_gets_one_try() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")

    def by_order(queues: Sequence[MessageQueue], _: Message, order_id: int) -> MessageQueue:
        return queues[order_id % len(queues)]

    async with Producer("shop", cluster.url) as producer:
        results = [
            await producer.send(Message("orders", b"x"), selector=by_order, selector_argument=6) for _ in range(3)
        ]
        assert {result.message_queue.queue_id for result in results} == {2}
        broker.next_codes = [common_pb.SYSTEM_BUSY]
        with pytest.raises(BrokerUnavailableError):
            await producer.send(Message("orders", b"x"), selector=by_order, selector_argument=6)
        with pytest.raises(MessageRejectedError, match="not one of the queues"):
            await producer.send(Message("orders", b"x"), selector=lambda *_: MessageQueue("orders", "nowhere", 0))


async def test_wrong_states_and_arguments_are_rejected() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    producer = Producer("shop", cluster.url)
    with pytest.raises(IllegalStateError, match="CREATE_JUST"):
        await producer.send(Message("orders", b"x"))
    await producer.start()
    with pytest.raises(IllegalStateError, match="RUNNING"):
        await producer.start()
    with pytest.raises(IllegalArgumentError, match="above 0"):
        await producer.send(Message("orders", b"x"), timeout=0)
    with pytest.raises(MessageRejectedError):
        await producer.send(Message("orders", b""))
    await producer.shutdown()
    with pytest.raises(IllegalStateError, match="SHUTDOWN"):
        await producer.send(Message("orders", b"x"))


@pytest.mark.mechanism("P17", "L2")
@pytest.mark.parametrize("group", ["", "a b", "a" * 256, "gr\u00fcn", "a" * 121])
def test_illegal_group_is_rejected(group: str) -> None:
    with pytest.raises(IllegalGroupError, match="group"):
        Producer(group, "mq://127.0.0.1:9876")


@pytest.mark.parametrize(
    ("url", "kind", "reason"),
    [
        ("carrier-pigeon://loft", UnknownTransportError, "carrier-pigeon.*there is: .*mq"),
        ("127.0.0.1:9876", IllegalArgumentError, "mq://host:port"),
        ("mq://", IllegalArgumentError, "empty"),
        ("mq://host", IllegalArgumentError, "host:port"),
        ("mq://host:99999", IllegalArgumentError, "1 to 65535"),
        ("fake://not-made", IllegalArgumentError, "FakeCluster"),
    ],
)
async def test_bad_url_is_rejected_and_the_start_has_failed(url: str, kind: type[MQClientError], reason: str) -> None:
    producer = Producer("shop", url)
    with pytest.raises(kind, match=reason):
        await producer.start()
    with pytest.raises(IllegalStateError, match="START_FAILED"):
        await producer.start()


@pytest.mark.parametrize(
    "settings",
    [
        {"instance_name": "a@b"},
        {"instance_name": ""},
        {"heartbeat_broker_interval_s": 0},
        {"request_timeout_s": "3"},
        {"reconnect_backoff_min_s": 3.0},
    ],
)
def test_senseless_client_config_is_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises(IllegalArgumentError):
        ClientConfig(**settings)


async def test_one_instance_per_client_id_is_shared_and_leaves_last() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    first, second = Producer("one", cluster.url), Producer("two", cluster.url)
    await first.start()
    await second.start()
    await first.send(Message("orders", b"x"))
    await second.send(Message("orders", b"x"))
    await settle()
    assert broker.producer_groups() == ["one", "two"]
    assert len([stream for stream in broker.streams if stream.path.endswith("Session")]) == 1
    twin = Producer("one", cluster.url)
    with pytest.raises(IllegalStateError, match="instance_name"):
        await twin.start()
    with pytest.raises(IllegalStateError, match="another ClientConfig"):
        await Producer("three", cluster.url, client_config=ClientConfig(heartbeat_broker_interval_s=9)).start()
    await first.shutdown()
    await settle()
    assert broker.producer_groups() == ["two"]
    await second.send(Message("orders", b"x"))
    await second.shutdown()
    assert broker.producer_groups() == []
    assert broker.streams == []


async def test_shutdown_waits_for_what_was_accepted() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    before = asyncio.all_tasks()
    broker.silent = True
    producer = Producer("shop", cluster.url)
    await producer.start()
    send = asyncio.create_task(producer.send(Message("orders", b"x")))
    await settle()
    leaving = asyncio.create_task(producer.shutdown())
    await settle()
    assert not leaving.done()
    broker.answer_frame(broker.frames[0])
    await leaving
    assert (await send).send_status is SendStatus.SEND_OK
    assert asyncio.all_tasks() == before
    assert cluster.clock.timers == 0


async def test_shutdown_is_bounded_and_reports_what_it_abandons() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    before = asyncio.all_tasks()
    broker.silent = True
    producer = Producer("shop", cluster.url)
    await producer.start()
    send = asyncio.create_task(producer.send(Message("orders", b"x"), timeout=60.0))
    await settle()
    leaving = asyncio.create_task(producer.shutdown(timeout_s=5.0))
    await cluster.clock.advance(5.1)
    await leaving
    with pytest.raises(ConnectionLostError):
        await send
    assert asyncio.all_tasks() == before
    assert cluster.clock.timers == 0


async def test_session_reopens_after_it_broke() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        await settle()
        assert broker.producer_groups() == ["shop"]
        broker.down = True
        broker.break_streams()
        await cluster.clock.advance(10.0)
        assert broker.producer_groups() == []
        broker.down = False
        await cluster.clock.advance(2.1)
        assert broker.producer_groups() == ["shop"]

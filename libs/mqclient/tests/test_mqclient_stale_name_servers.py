"""A name server that brokers cannot reach: its clients go on with what the other ones know."""

from __future__ import annotations

import asyncio

import pytest

from mqclient import Admin, ClientConfig, Message, NoRouteError, Producer, PullConsumer, PushConsumer
from mqclient.client_instance import acquire_instance
from mqclient.testing import FakeBroker, FakeCluster, RecordingListener
from osenv.sim_clock import settle

CLIENTS = 10  # each begins with a name server of its own choice


def pair(name_servers: int = 2) -> tuple[FakeCluster, FakeBroker, FakeBroker]:
    """A master of `orders` with a replica."""
    cluster = FakeCluster(name_servers=name_servers)
    master = cluster.add_broker("broker-a")
    master.create_topic("orders")
    return cluster, master, cluster.add_replica(master)


def asked(cluster: FakeCluster) -> list[int]:
    """How many questions each name server has had."""
    return [len(server.asked) + server.listed for server in cluster.name_servers.values()]


async def finished(cluster: FakeCluster, *tasks: asyncio.Task[object], within_s: float = 3.0) -> None:
    """Move the clock until they have ended. Raises AssertionError when they take longer."""
    until = cluster.clock.monotonic() + within_s
    await settle()
    while not all(task.done() for task in tasks):
        assert cluster.clock.monotonic() < until
        await cluster.clock.advance(0.1)


@pytest.mark.parametrize("state", ["empty", "stale"])
async def test_new_producers_send_whichever_name_server_they_begin_with(state: str) -> None:
    cluster, master, replica = pair()
    cut_off, _ = cluster.name_servers.values()
    cut_off.cut_off()
    cut_off.knows_nothing = state == "empty"
    cluster.switch(master, replica)
    replica.auto_create = True
    for number in range(CLIENTS):
        async with Producer("shop", cluster.url, client_config=ClientConfig(instance_name=str(number))) as producer:
            sends = [asyncio.create_task(producer.send(Message("orders", b"existing")))]
            sends.append(asyncio.create_task(producer.send(Message(f"new-{number}", b"made by its first message"))))
            await finished(cluster, *sends)
            for sending in sends:
                sending.result()
    assert replica.bodies.count(b"existing") == CLIENTS
    assert master.bodies == []


@pytest.mark.parametrize("state", ["empty", "stale"])
@pytest.mark.parametrize("routes_refreshed", [False, True])
async def test_running_producers_follow_a_switch_that_their_name_server_has_missed(
    state: str, routes_refreshed: bool
) -> None:
    cluster, master, replica = pair()
    cut_off, _ = cluster.name_servers.values()
    producers = [
        Producer("shop", cluster.url, client_config=ClientConfig(instance_name=str(number)))
        for number in range(CLIENTS)
    ]
    for producer in producers:
        await producer.start()
        await producer.send(Message("orders", b"before"))
    cut_off.cut_off()
    cut_off.knows_nothing = state == "empty"
    cluster.switch(master, replica)
    sends = [asyncio.create_task(producer.send(Message("orders", b"after"))) for producer in producers]
    await finished(cluster, *sends)
    if routes_refreshed:  # nothing takes them back to the old master
        await cluster.clock.advance(31.0)
    sends += [asyncio.create_task(producer.send(Message("orders", b"after"))) for producer in producers]
    await finished(cluster, *sends)
    for sending in sends:
        sending.result()
    assert replica.bodies.count(b"after") == 2 * CLIENTS
    for producer in producers:
        await producer.shutdown()


async def test_new_consumers_and_pull_consumers_find_the_topic() -> None:
    cluster, master, _ = pair()
    master.put("orders", 0, b"x")
    cut_off, _ = cluster.name_servers.values()
    cut_off.knows_nothing = True
    for number in range(CLIENTS):
        config = ClientConfig(instance_name=str(number))
        async with PullConsumer(f"pulling-{number}", cluster.url, client_config=config) as pulling:
            assert len(await pulling.fetch_subscribe_message_queues("orders")) == 4
        listener = RecordingListener()
        consumer = PushConsumer(f"pushing-{number}", cluster.url, client_config=config)
        consumer.subscribe("orders")
        consumer.register_message_listener(listener)
        async with consumer:
            starting = asyncio.create_task(consumer.wait_assigned(timeout_s=10.0))
            await finished(cluster, starting, within_s=10.0)
            assert starting.result()


async def test_a_recall_finds_the_new_master() -> None:
    cluster, master, replica = pair()
    stale, _ = cluster.name_servers.values()
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x", keys="order-17", delay_ms=60_000))
    stale.cut_off()
    cluster.switch(master, replica)
    replica.waiting.messages = master.waiting.messages
    for number in range(CLIENTS):
        async with Producer("shop", cluster.url, client_config=ClientConfig(instance_name=str(number))) as producer:
            recalling = asyncio.create_task(producer.recall("orders", key="order-17"))
            await finished(cluster, recalling)
            assert recalling.result().messages


async def test_a_broker_is_away_when_one_name_server_says_so_and_none_knows_it() -> None:
    cluster, _, _ = pair()
    partly, other = cluster.name_servers.values()
    async with Admin(cluster.url) as admin:
        assert await admin.away_brokers("orders") == []
        other.away = ["broker-b"]
        assert await admin.away_brokers("orders") == ["broker-b"]
        partly.away = ["broker-a"]  # the other one has its route
        assert await admin.away_brokers("orders") == ["broker-b"]


async def test_an_operator_sees_what_any_name_server_knows() -> None:
    cluster, _, replica = pair()
    other = cluster.add_broker("broker-b")
    other.create_topic("payments")
    partly, rest = cluster.name_servers.values()
    partly.cut_off()
    partly.forget("broker-b")
    late = cluster.add_broker("broker-c")
    late.create_topic("refunds")
    rest.forget("broker-a")
    for number in range(CLIENTS):
        async with Admin(cluster.url, client_config=ClientConfig(instance_name=str(number))) as admin:
            assert {"orders", "payments", "refunds"} <= set(await admin.topic_list())
            listed = {(one.broker_name, one.broker_id): one.address for one in await admin.cluster_list()}
            assert listed == {
                ("broker-a", 0): "127.0.0.1:10911",
                ("broker-a", 1): replica.address,
                ("broker-b", 0): other.address,
                ("broker-c", 0): late.address,
            }
            for topic in ("orders", "payments", "refunds"):
                assert (await admin.topic_route(topic)).queues


async def test_a_certain_answer_is_preferred_and_its_name_server_asked_from_then_on() -> None:
    cluster, _, _ = pair(name_servers=3)
    other = cluster.add_broker("broker-b")
    other.create_topic("orders")
    first, second, certain = cluster.name_servers.values()
    for server in (first, second):
        server.uncertain = True
        server.forget("broker-b")
    for number in range(CLIENTS):
        async with Producer("shop", cluster.url, client_config=ClientConfig(instance_name=str(number))) as producer:
            queues = await producer.fetch_publish_message_queues("orders")
            assert {queue.broker_name for queue in queues} == {"broker-a", "broker-b"}
            before = asked(cluster)
            await acquire_instance(cluster.url, ClientConfig(instance_name=str(number))).routes.refresh("orders")
            assert [now - then for now, then in zip(asked(cluster), before, strict=True)] == [0, 0, 1]
    assert certain.asked


async def test_a_broker_that_has_lost_its_epochs_counts_when_every_name_server_says_so() -> None:
    """As after its store was put back from a backup: the lower epoch is the truth."""
    cluster, master, replica = pair()
    async with Producer("shop", cluster.url) as producer:
        cluster.switch(master, replica)
        await finished(cluster, asyncio.create_task(producer.send(Message("orders", b"before"))))
        replica.down = True
        master.broker_id, master.term, replica.term = 0, 1, 0
        replica.break_streams()
        sending = asyncio.create_task(producer.send(Message("orders", b"after")))
        await finished(cluster, sending)
        sending.result()
    assert b"after" in master.bodies


async def test_each_name_server_is_asked_once_for_one_refresh_and_then_there_is_a_pause() -> None:
    cluster, _, _ = pair(name_servers=3)
    async with Producer("shop", cluster.url) as producer:
        routes = acquire_instance(cluster.url, ClientConfig()).routes
        await producer.send(Message("orders", b"x"))
        before = asked(cluster)
        await asyncio.gather(*(routes.refresh("nowhere") for _ in range(100)))
        assert [now - then for now, then in zip(asked(cluster), before, strict=True)] == [1, 1, 1]
        for _ in range(100):
            await routes.refresh("nowhere")
        assert sorted(now - then for now, then in zip(asked(cluster), before, strict=True)) == [1, 1, 101]
        await cluster.clock.advance(1.0)
        await routes.refresh("nowhere")
        assert sorted(now - then for now, then in zip(asked(cluster), before, strict=True))[:2] == [2, 2]


async def test_a_silent_name_server_delays_the_questions_of_many_topics_once() -> None:
    cluster, _, _ = pair()
    current, silent = cluster.name_servers.values()
    async with Producer("shop", cluster.url) as producer:
        silent.silent = True
        instance = acquire_instance(cluster.url, ClientConfig())
        first = asyncio.create_task(instance.routes.refresh("orders"))
        await finished(cluster, first)  # from now on the one that answers is asked first
        began = cluster.clock.monotonic()
        sends = [asyncio.create_task(producer.send(Message("one", b"x")))]
        await finished(cluster, *sends)
        for number in range(20):
            sends.append(asyncio.create_task(producer.send(Message(f"two-{number}", b"x"))))
            await finished(cluster, *sends)
        assert cluster.clock.monotonic() - began <= 1.2
    assert current.asked


async def test_without_a_route_anywhere_the_error_is_that_of_one_name_server() -> None:
    cluster = FakeCluster(name_servers=2)
    async with Producer("shop", cluster.url) as producer:
        sending = asyncio.create_task(producer.send(Message("orders", b"x")))
        await finished(cluster, sending)
        with pytest.raises(NoRouteError, match="no broker is registered at the name server"):
            sending.result()

"""Client ids, which clients share an instance, and its lifetime (mechanisms L1, L3, L4, L14)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mqclient import Admin, ClientConfig, IllegalStateError, Message, Producer, ServiceState
from mqclient.client_instance import ClientInstance, acquire_instance, process_name
from mqclient.testing import FakeBroker, FakeCluster, RecordingListener, consumer_of
from mqclient.transport import open_transport
from osenv.sim_clock import settle


def instance_of(cluster: FakeCluster, **settings: str) -> ClientInstance:
    return acquire_instance(cluster.url, ClientConfig(**settings))  # type: ignore[arg-type]


def client_ids(broker: FakeBroker) -> set[str]:
    return {heartbeat.client_id for heartbeat in broker.sessions.heartbeats}


@pytest.mark.mechanism("L3")
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ClientConfig(), "10.0.0.1@{process}"),
        (ClientConfig(instance_name="till"), "10.0.0.1@till"),
        (ClientConfig(instance_name="till", unit_name="north"), "10.0.0.1@till@north"),
    ],
)
async def test_a_client_id_is_the_address_the_name_and_the_unit(config: ClientConfig, expected: str) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url, client_config=config) as producer:
        await producer.send(Message("orders", b"x"))
        await settle()
    assert client_ids(broker) == {expected.format(process=process_name(os.getpid()))}


@pytest.mark.mechanism("L4")
async def test_two_urls_have_two_instances_with_different_client_ids() -> None:
    """The broker takes the newest session of a client id for all of that client, so no two may share one."""
    first, second = FakeCluster("first"), FakeCluster("second")
    broker = first.add_broker("broker-a")
    second.brokers = first.brokers  # the same cluster under another URL
    async with Producer("one", first.url) as one, Producer("two", second.url) as two:
        await one.send(Message("orders", b"x"))
        await two.send(Message("orders", b"x"))
        await settle()
        assert broker.producer_groups() == ["one", "two"]
    assert client_ids(broker) == {f"10.0.0.1@{process_name(os.getpid())}", f"10.0.0.1@{process_name(os.getpid())}#2"}


def test_the_default_name_tells_containers_apart_that_share_address_and_process_id() -> None:
    """Each container has a process 1, and on two hosts they may have one address, too."""
    names = {process_name.__wrapped__(1) for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("1#") for name in names)


async def test_a_name_that_looks_like_the_process_id_is_another_client() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    named = ClientConfig(instance_name=str(os.getpid()))
    async with Producer("one", cluster.url) as one, Producer("two", cluster.url, client_config=named) as two:
        await one.send(Message("orders", b"x"))
        await two.send(Message("orders", b"x"))
        await settle()
        assert broker.producer_groups() == ["one", "two"]
    assert len(client_ids(broker)) == 2


def test_two_event_loops_have_two_instances_with_different_client_ids() -> None:
    FakeCluster("loops").add_broker("broker-a")
    ids: list[str] = []
    both_run = threading.Barrier(2, timeout=10)

    async def live() -> None:
        async with Admin("fake://loops"):
            ids.append(acquire_instance("fake://loops", ClientConfig()).client_id)
            await asyncio.to_thread(both_run.wait)
            await asyncio.to_thread(both_run.wait)

    threads = [threading.Thread(target=asyncio.run, args=(live(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(ids) == [f"10.0.0.1@{process_name(os.getpid())}", f"10.0.0.1@{process_name(os.getpid())}#2"]


async def test_the_id_of_an_instance_that_has_left_is_free_again() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    ids = []
    for _ in range(3):
        async with Admin(cluster.url):
            ids.append(instance_of(cluster).client_id)
    assert set(ids) == {f"10.0.0.1@{process_name(os.getpid())}"}


@pytest.mark.mechanism("L4", "L14")
async def test_producers_consumers_and_admins_share_an_instance_until_the_last_one_leaves() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    admin, producer, consumer = (
        Admin(cluster.url),
        Producer("shop", cluster.url),
        consumer_of(cluster, RecordingListener()),
    )
    await admin.start()
    instance = instance_of(cluster)
    await producer.start()
    await consumer.start()
    assert instance_of(cluster) is instance
    await producer.shutdown()
    await consumer.shutdown()
    assert "orders" in await admin.topic_list()  # the admin keeps it alive
    assert instance_of(cluster) is instance
    await settle()
    assert broker.producer_groups() == []
    assert broker.members("closers") == []
    await admin.shutdown()
    assert broker.streams == []
    assert cluster.clock.timers == 0
    another = instance_of(cluster)
    assert another is not instance
    await another.release()


@pytest.mark.mechanism("L14")
async def test_the_same_admin_is_registered_once() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    async with Admin(cluster.url) as admin:
        instance = instance_of(cluster)
        with pytest.raises(IllegalStateError, match="has this admin already"):
            instance.register_admin(admin)


@pytest.mark.mechanism("L1")
async def test_an_instance_starts_once_and_not_again_after_a_start_that_failed() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    transport = open_transport(cluster.url)
    instance = ClientInstance("id", cluster.url, ClientConfig(), transport)
    with failing_tasks(instance), pytest.raises(RuntimeError, match="no more tasks"):
        instance.start()
    with pytest.raises(IllegalStateError, match=f"cannot start: it is in state {ServiceState.START_FAILED.value}"):
        instance.start()
    second = ClientInstance("id", cluster.url, ClientConfig(), transport)
    second.start()
    with pytest.raises(IllegalStateError, match=ServiceState.RUNNING.value):
        second.start()
    await second.release()
    with pytest.raises(IllegalStateError, match=ServiceState.SHUTDOWN.value):
        second.start()
    with pytest.raises(IllegalStateError, match="has been shut down"):
        second.connection_to("127.0.0.1:10911")


@contextmanager
def failing_tasks(instance: ClientInstance) -> Iterator[None]:
    def reject(*_: object, **__: object) -> asyncio.Task[None]:
        raise RuntimeError("no more tasks")

    instance.tasks.start_periodic = reject  # type: ignore[method-assign]
    yield


@pytest.mark.mechanism("L1")
@pytest.mark.parametrize("kind", ["producer", "consumer", "admin"])
async def test_a_second_start_is_rejected_in_every_state(kind: str) -> None:
    cluster, _ = FakeCluster.of("broker-a")
    made: Any = {
        "producer": Producer("shop", cluster.url),
        "consumer": consumer_of(cluster, RecordingListener()),
        "admin": Admin(cluster.url),
    }[kind]
    await made.start()
    with pytest.raises(IllegalStateError, match="RUNNING"):
        await made.start()
    await made.shutdown()
    for call in (made.start, made.shutdown):
        with pytest.raises(IllegalStateError, match="SHUTDOWN"):
            await call()
    assert cluster.clock.timers == 0


async def test_of_several_tasks_that_start_or_shut_down_at_once_one_succeeds() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    before = asyncio.all_tasks()
    everything: list[Any] = [
        Producer("shop", cluster.url),
        consumer_of(cluster, RecordingListener()),
        Admin(cluster.url),
    ]
    for made in everything:
        for call in (made.start, made.shutdown):
            outcomes = await asyncio.gather(*(call() for _ in range(5)), return_exceptions=True)
            assert [outcome for outcome in outcomes if outcome is None] == [None]
            assert sum(isinstance(outcome, IllegalStateError) for outcome in outcomes) == 4
    assert asyncio.all_tasks() == before
    assert cluster.clock.timers == 0

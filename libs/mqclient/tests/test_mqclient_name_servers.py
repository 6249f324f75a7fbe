"""Several name servers, and what happens when they are silent, forgetful or others than before.

Mechanisms N4, N6, N7.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from mqclient import Admin, ClientConfig, Message, NoRouteError, Producer
from mqclient.client_instance import ClientInstance, acquire_instance
from mqclient.testing import FakeCluster
from osenv.sim_clock import settle


class Source:
    """Tells the name servers that the test has put into `addresses`; hangs, or raises, when it is told to."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.hangs = False
        self.asked = 0

    def __str__(self) -> str:
        return "the test"

    async def look_up(self) -> tuple[str, ...]:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if not self.addresses:
            raise NoRouteError("the test does not know the name servers")
        return self.addresses


def cluster_of(name_servers: int, *known: int) -> tuple[FakeCluster, Source]:
    """A cluster whose name servers are looked up, and at first those with the numbers `known` are."""
    cluster = FakeCluster(name_servers=name_servers)
    cluster.add_broker("broker-a").create_topic("orders")
    source = cluster.name_server_source = Source(*(f"name-server-{number}" for number in known))
    return cluster, source


def instance_of(cluster: FakeCluster) -> ClientInstance:
    return acquire_instance(cluster.url, ClientConfig())


def open_channels(cluster: FakeCluster) -> set[str]:
    return {channel.address for channel in cluster.channels if "name-server" in channel.address and not channel.closed}


async def test_a_silent_name_server_costs_a_second_and_is_not_asked_first_again() -> None:
    cluster = FakeCluster(name_servers=2)
    cluster.add_broker("broker-a").create_topic("orders")
    servers = list(cluster.name_servers.values())
    async with Producer("shop", cluster.url):
        instance = instance_of(cluster)
        await instance.routes.refresh("orders")
        (current,) = [server for server in servers if server.asked]
        (other,) = [server for server in servers if server is not current]
        current.silent = True
        asking = asyncio.create_task(instance.routes.refresh("orders"))
        await cluster.clock.advance(0.9)
        assert not asking.done()
        await cluster.clock.advance(0.2)
        assert await asking is not None
        assert other.asked == ["orders"]
        await instance.routes.refresh("orders")  # at once: the clock stands still
        assert other.asked == ["orders", "orders"]


async def test_concurrent_queries_find_the_one_name_server_that_answers() -> None:
    """They must not lead each other past it, whatever their number, and wherever each of them begins."""
    for count, living in itertools.product((2, 3, 5), (0, 1)):
        cluster = FakeCluster(name_servers=count)
        cluster.add_broker("broker-a")
        for number, server in enumerate(cluster.name_servers.values()):
            server.down = number != living
        async with Admin(cluster.url) as admin:
            for answer in await asyncio.gather(*(admin.topic_list() for _ in range(4))):
                assert "TBW102" in answer


async def test_sending_goes_on_while_every_name_server_is_down_or_knows_nothing_yet() -> None:
    cluster = FakeCluster(name_servers=2)
    cluster.add_broker("broker-a").create_topic("orders")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        for server in cluster.name_servers.values():
            server.down = True
        await cluster.clock.advance(3_600.0)
        await producer.send(Message("orders", b"x"))
        for server in cluster.name_servers.values():
            server.down, server.knows_nothing = False, True  # restarted, and no broker has registered again
        await cluster.clock.advance(120.0)
        assert (await producer.send(Message("orders", b"x"))).message_queue.broker_name == "broker-a"


async def test_what_a_restarted_name_server_knows_so_far_is_taken_as_the_truth() -> None:
    """As in RocketMQ: a route with fewer brokers replaces the cached one, and the next refresh brings the others."""
    cluster, (first, _) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        config = first.topics.pop("orders")  # not registered again yet
        await cluster.clock.advance(31.0)
        results = [await producer.send(Message("orders", b"x")) for _ in range(8)]
        assert {result.message_queue.broker_name for result in results} == {"broker-b"}
        first.topics["orders"] = config
        await cluster.clock.advance(31.0)
        results = [await producer.send(Message("orders", b"x")) for _ in range(8)]
        assert {result.message_queue.broker_name for result in results} == {"broker-a", "broker-b"}


async def test_no_name_server_is_asked_for_the_other_topics_when_none_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster()
    broker = cluster.add_broker("broker-a")
    async with Producer("shop", cluster.url) as producer:
        for number in range(50):
            broker.create_topic(f"topic-{number}")
            await producer.send(Message(f"topic-{number}", b"x"))
        (server,) = cluster.name_servers.values()
        server.silent = True
        await cluster.clock.advance(30.0)  # one refresh, which is given up after a second, and not 50
        assert caplog.text.count("could not be refreshed, the old one stays") == 1


async def test_the_first_who_asks_waits_for_the_first_look_up() -> None:
    cluster, source = cluster_of(1)
    async with Producer("shop", cluster.url) as producer:
        await settle()
        with pytest.raises(NoRouteError, match="the test does not know"):
            await producer.send(Message("orders", b"x"))
        source.addresses = ("name-server-0",)
        await producer.send(Message("orders", b"x"))
        asked = source.asked
        await producer.send(Message("orders", b"x"))
        assert source.asked == asked


async def test_many_who_ask_at_once_share_one_look_up_and_a_silent_source_is_given_up() -> None:
    cluster, source = cluster_of(1)
    source.hangs = True
    async with Admin(cluster.url) as admin:
        asking = asyncio.gather(*(admin.topic_list() for _ in range(5)), return_exceptions=True)
        await cluster.clock.advance(2.9)
        assert not asking.done()
        await cluster.clock.advance(0.2)
        for error in await asking:
            assert isinstance(error, NoRouteError)
            assert "the test did not tell the name servers within 3 s" in str(error)
        assert source.asked == 1


@pytest.mark.parametrize("broken", ["empty", "hangs"])
async def test_a_look_up_that_fails_keeps_the_old_addresses(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    cluster, source = cluster_of(1, 0)
    async with Admin(cluster.url) as admin:
        await admin.topic_list()
        source.addresses, source.hangs = (), broken == "hangs"
        await cluster.clock.advance(15.0)
        assert "could not be fetched, the old ones stay" in caplog.text
        assert "orders" in await admin.topic_list()


@pytest.mark.mechanism("N7")
async def test_new_addresses_are_used_and_the_channels_of_removed_ones_closed() -> None:
    cluster, source = cluster_of(3, 0)
    async with Admin(cluster.url) as admin:
        await admin.topic_route("orders")
        assert open_channels(cluster) == {"name-server-0"}
        source.addresses = ("name-server-1", "name-server-2")
        await cluster.clock.advance(10.1)
        assert open_channels(cluster) == set()
        cluster.name_servers["name-server-0"].down = True
        await admin.topic_route("orders")
        assert len(open_channels(cluster)) == 1
    assert open_channels(cluster) == set()


async def test_the_current_name_server_stays_the_current_one_while_it_is_listed() -> None:
    cluster, source = cluster_of(5, 3)
    async with Admin(cluster.url) as admin:
        await admin.topic_route("orders")
        for addresses in (("name-server-0", "name-server-3"), ("name-server-3", "name-server-1", "name-server-4")):
            source.addresses = addresses
            await cluster.clock.advance(121.0)
            await admin.topic_route("orders")
            assert open_channels(cluster) == {"name-server-3"}


async def test_a_question_that_is_under_way_moves_on_when_its_name_server_is_removed() -> None:
    cluster, source = cluster_of(2, 0)
    async with Admin(cluster.url) as admin:
        await admin.topic_list()
        await cluster.clock.advance(9.5)
        cluster.name_servers["name-server-0"].silent = True
        source.addresses = ("name-server-1",)
        asking = asyncio.create_task(admin.topic_list())
        await cluster.clock.advance(1.1)
        assert "orders" in await asking
        assert open_channels(cluster) == {"name-server-1"}


async def test_a_call_that_waits_for_a_route_hears_of_the_shutdown_and_is_not_cancelled() -> None:
    cluster = FakeCluster()
    (server,) = cluster.name_servers.values()
    server.silent = True
    producer = Producer("shop", cluster.url, client_config=ClientConfig(name_server_timeout_s=60.0))
    await producer.start()
    send = asyncio.create_task(producer.send(Message("orders", b"x"), timeout=50.0))
    await settle()
    leaving = asyncio.create_task(producer.shutdown(timeout_s=1.0))
    await cluster.clock.advance(1.1)
    await leaving
    with pytest.raises(NoRouteError, match="shut down"):
        await send
    assert open_channels(cluster) == set()

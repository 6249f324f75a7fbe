"""Three brokers and two name servers, real processes: who dies or hangs is left out; who is back is used again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hourglass_local.cluster import Cluster
from hourglass_local.process import ManagedProcess
from hourglass_local.waiting import eventually
from mqclient import (
    Admin,
    ClientConfig,
    Message,
    MessageQueue,
    MQClientError,
    Producer,
    ProducerConfig,
    SendResult,
)

TOPIC, QUEUES = "failover", 4
BROKERS = ("broker-a", "broker-b", "broker-c")
SENDERS = 8
TIMEOUT_S = 30.0
QUICK = ClientConfig(poll_name_server_interval_s=0.3, heartbeat_broker_interval_s=0.3)
ISOLATION_S = 10.0  # mechanism P12: what counts as isolated

pytestmark = pytest.mark.processes


@dataclass
class Load:
    """Senders that never pause, and what each of their sends came to."""

    producer: Producer
    results: list[SendResult] = field(default_factory=list)
    bodies: dict[bytes, SendResult] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    async def send_for_ever(self, sender: int) -> None:
        clock, number = asyncio.get_running_loop().time, 0
        while True:
            body, began = b"%d:%d" % (sender, number), clock()
            number += 1
            try:
                result = await self.producer.send(Message(TOPIC, body))
            except MQClientError as error:
                self.failures.append(f"{body.decode()}: {type(error).__name__}: {error}")
                continue
            self.slowest_s = max(self.slowest_s, clock() - began)
            self.results.append(result)
            self.bodies[body] = result

    def brokers_since(self, start: int) -> Counter[str]:
        """Who took what was sent since the result number `start`."""
        return Counter(result.message_queue.broker_name for result in self.results[start:])

    async def until(self, enough: Callable[[Counter[str]], bool], what: str) -> Counter[str]:
        """Go on until what is sent from now on is `enough`."""
        start = len(self.results)
        await eventually(lambda: enough(self.brokers_since(start)), TIMEOUT_S, what)
        return self.brokers_since(start)

    async def some(self, count: int = 200) -> Counter[str]:
        return await self.until(lambda brokers: brokers.total() >= count, f"{count} more messages")


@contextlib.asynccontextmanager
async def cluster_of_three(folder: Path) -> AsyncIterator[Cluster]:
    async with Cluster(folder, name_servers=2, brokers=3, orders=False) as cluster:
        async with Admin(cluster.url) as admin:
            await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
        yield cluster


@contextlib.asynccontextmanager
async def load(cluster: Cluster, config: ProducerConfig | None = None) -> AsyncIterator[Load]:
    async with Producer("senders", cluster.url, client_config=QUICK, producer_config=config) as producer:
        running = Load(producer)
        tasks = [asyncio.create_task(running.send_for_ever(sender)) for sender in range(SENDERS)]
        try:
            yield running
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def all_three(brokers: Counter[str]) -> bool:
    return all(brokers[name] >= 10 for name in BROKERS)


async def stored_bodies(admin: Admin) -> Counter[bytes]:
    """Every body of the topic, on all brokers, and how often it is there."""
    bodies: Counter[bytes] = Counter()
    for broker_name in BROKERS:
        for queue_id in range(QUEUES):
            queue = MessageQueue(TOPIC, broker_name, queue_id)
            offset, end = await admin.queue_offsets(queue)
            while offset < end:
                pulled = await admin.pull(queue, offset, max_messages=32)
                bodies.update(message.body for message in pulled.messages)
                offset = pulled.next_begin_offset
    return bodies


def broker(cluster: Cluster, name: str) -> ManagedProcess:
    return next(process for process in cluster.brokers if process.name == name)


async def routed_brokers(admin: Admin) -> set[str]:
    return {queues.broker_name for queues in (await admin.topic_route(TOPIC)).queues}


async def test_a_broker_killed_under_load_costs_no_send_and_is_used_again_when_it_is_back(tmp_path: Path) -> None:
    async with cluster_of_three(tmp_path) as cluster, Admin(cluster.url, client_config=QUICK) as admin:
        async with load(cluster) as running:
            await running.until(all_three, "traffic to all three brokers")
            await broker(cluster, "broker-b").kill()
            await running.some()
            await eventually(
                lambda: _without(admin, "broker-b"), TIMEOUT_S, "a route without the broker that was killed"
            )
            without = await running.until(lambda brokers: brokers.total() >= 500, "500 messages")
            assert without["broker-a"] >= 100
            assert without["broker-c"] >= 100
            await broker(cluster, "broker-b").start()
            await running.until(all_three, "traffic to all three brokers again")
        assert running.failures == []
        assert running.slowest_s < 3.0  # the whole budget of a send (mechanism P4)
        bodies = await stored_bodies(admin)
        assert [body for body in running.bodies if not bodies[body]] == []


async def _without(admin: Admin, name: str) -> bool:
    return name not in await routed_brokers(admin)


@pytest.mark.mechanism("P11")
async def test_a_broker_that_hangs_loses_its_traffic_and_gets_it_back_as_the_table_says(tmp_path: Path) -> None:
    config = ProducerConfig(send_latency_fault_enable=True, send_msg_max_timeout_per_request_s=0.5)
    async with cluster_of_three(tmp_path) as cluster, load(cluster, config) as running:
        await running.until(all_three, "traffic to all three brokers")
        hanging = broker(cluster, "broker-b")
        clock = asyncio.get_running_loop().time
        hanging.pause()
        try:
            # The sends that are under way, and those that begin before the first of them has failed, still meet it.
            await running.until(lambda brokers: brokers.total() >= 50 * SENDERS, "sends past the broker that hangs")
            stopped_at = clock()
            assert (await running.some(300))["broker-b"] == 0
        finally:
            hanging.resume()
        await running.until(lambda brokers: brokers["broker-b"] >= 10, "traffic to the broker that is back")
        assert clock() - stopped_at > ISOLATION_S / 2  # it was left alone, although it answered again
        assert running.failures == []


@pytest.mark.mechanism("N4")
async def test_sending_goes_on_while_name_servers_die(tmp_path: Path) -> None:
    async with cluster_of_three(tmp_path) as cluster, load(cluster) as running:
        await running.until(all_three, "traffic to all three brokers")
        first, second = cluster.name_servers
        await first.kill()
        await running.some()
        await first.start()
        await cluster.wait_registered()  # all that it knows is from the brokers
        await second.kill()
        await running.some()
        await first.kill()  # now there is none
        for _ in range(5):
            assert all_three(await running.some(300))
        assert running.failures == []
        await first.start()
        await cluster.wait_registered()
        await running.until(all_three, "traffic to all three brokers")
        assert running.failures == []

"""Name servers and brokers, real processes: any order of starting, name servers that come late, die, disagree."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from hourglass.mq.v1 import admin_service_pb2, admin_service_pb2_grpc, name_service_pb2, name_service_pb2_grpc
from hourglass_local.ports import LOOPBACK, free_ports
from hourglass_local.queue_processes import broker, name_server, stopped_at_the_end, wait_known
from hourglass_local.waiting import eventually
from mqclient import (
    Admin,
    BrokerRejectedError,
    ClientConfig,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MQClientError,
    NoRouteError,
    Producer,
    PushConsumer,
    SendStatus,
)
from mqproto.names import DEFAULT_TOPIC

TOPIC, GROUP = "flights", "readers"
QUEUES = 4  # defaultTopicQueueNums, mechanism N10
TIMEOUT_S = 20
QUICK = ClientConfig(poll_name_server_interval_s=0.1)
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)

pytestmark = pytest.mark.processes


class Inbox:
    """A listener that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.messages += messages
        return ConsumeStatus.CONSUME_SUCCESS


def url(*ports: int) -> str:
    return "mq://" + ";".join(f"{LOOPBACK}:{port}" for port in ports)


async def route(name_server_port: int, topic: str) -> name_service_pb2.TopicRoute:
    """What this name server says; an empty route when it knows no broker."""
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{name_server_port}", options=OWN_CONNECTION) as channel:
        stub: Any = name_service_pb2_grpc.NameServiceStub(channel)
        answer = await stub.QueryRoute(name_service_pb2.QueryRouteRequest(topic=topic), timeout=TIMEOUT_S)
        return answer.route  # type: ignore[no-any-return]


async def send(producer: Producer, count: int, topic: str = TOPIC) -> Counter[tuple[str, int]]:
    """Send them; every one has to succeed. Returns how many went to each queue."""
    results = [await producer.send(Message(topic, b"%d" % number)) for number in range(count)]
    assert {result.send_status for result in results} == {SendStatus.SEND_OK}
    return Counter((result.message_queue.broker_name, result.message_queue.queue_id) for result in results)


@pytest.mark.mechanism("N1")
@pytest.mark.parametrize("order", list(itertools.permutations(["name server", "broker", "client"])), ids=" ".join)
async def test_they_find_each_other_in_any_order_of_starting(tmp_path: Path, order: tuple[str, ...]) -> None:
    routes_port, port = free_ports(2)
    routes = name_server(tmp_path, routes_port)
    served = broker(tmp_path, "broker-a", port, [routes_port])
    producer = Producer("writers", url(routes_port), client_config=QUICK)
    start = {"name server": routes.start, "broker": served.start, "client": producer.start}

    async def sent() -> bool:
        try:
            return (await producer.send(Message(TOPIC, b"hello"))).send_status is SendStatus.SEND_OK
        except MQClientError:
            return False

    async with stopped_at_the_end(routes, served):
        for who in order:
            await start[who]()
        await eventually(sent, TIMEOUT_S, "a message is sent")
        await producer.shutdown()


@pytest.mark.mechanism("N2", "N5")
async def test_a_broker_registers_with_all_name_servers_also_those_that_come_late_or_come_back(tmp_path: Path) -> None:
    first_port, second_port, port = free_ports(3)
    first, second = name_server(tmp_path, first_port), name_server(tmp_path, second_port)
    served = broker(tmp_path, "broker-a", port, [first_port, second_port])
    async with stopped_at_the_end(first, second, served):
        await first.start()
        await served.start()
        await wait_known(first_port, port)
        async with Admin(url(first_port)) as admin:
            await admin.update_topic(TOPIC, read_queue_count=8, write_queue_count=6, perm=4)
        known = await route(first_port, TOPIC)
        (queues,), (data,) = known.queues, known.brokers
        assert (queues.broker_name, queues.read_queue_count, queues.write_queue_count, queues.perm) == (
            "broker-a",
            8,
            6,
            4,
        )
        assert (data.cluster_name, dict(data.addresses)) == ("DefaultCluster", {0: f"{LOOPBACK}:{port}"})

        await second.start()
        await wait_known(second_port, port)
        assert await route(second_port, TOPIC) == known

        await first.kill()
        await first.start()
        await wait_known(first_port, port)
        assert await route(first_port, TOPIC) == known
        assert len(served.pids) == 1  # the broker was never started again


@pytest.mark.mechanism("N5")
async def test_topics_are_kept_by_the_broker_and_by_no_name_server(tmp_path: Path) -> None:
    routes_port, port = free_ports(2)
    routes, served = name_server(tmp_path, routes_port), broker(tmp_path, "broker-a", port, [routes_port])
    async with stopped_at_the_end(routes, served):
        await routes.start()
        await served.start()
        await wait_known(routes_port, port)
        async with Admin(url(routes_port)) as admin:
            await admin.update_topic(TOPIC, read_queue_count=8, write_queue_count=6)
        known = await route(routes_port, TOPIC)
        await served.kill()
        await wait_known(routes_port)
        assert not (await route(routes_port, TOPIC)).queues
        await routes.kill()
        await routes.start()
        await served.start()
        await wait_known(routes_port, port)
        again = await route(routes_port, TOPIC)
        assert again.brokers[0].master_epoch.start > known.brokers[0].master_epoch.start  # it has started again
        again.brokers[0].master_epoch.CopyFrom(known.brokers[0].master_epoch)
        for found in (again, known):
            assert found.brokers[0].frames_addresses.keys() == {0}
            found.brokers[0].frames_addresses.clear()  # any free port
        assert again == known


@pytest.mark.mechanism("N4")
async def test_sending_goes_on_while_name_servers_disagree(tmp_path: Path) -> None:
    knowing_port, ignorant_port, port = free_ports(3)
    knowing, ignorant = name_server(tmp_path, knowing_port), name_server(tmp_path, ignorant_port)
    file = tmp_path / "broker.conf"
    file.write_text(f"namesrvAddr={LOOPBACK}:{knowing_port};{LOOPBACK}:{ignorant_port}\n")
    served = broker(tmp_path, "broker-a", port, [], "-c", str(file))
    async with stopped_at_the_end(knowing, ignorant, served):
        for process in (knowing, ignorant, served):
            await process.start()
        await wait_known(knowing_port, port)
        await wait_known(ignorant_port, port)
        async with Admin(url(knowing_port)) as admin:
            await admin.update_topic(TOPIC)
        async with Producer("writers", url(knowing_port, ignorant_port), client_config=QUICK) as producer:
            await send(producer, 8)
            file.write_text(f"namesrvAddr={LOOPBACK}:{knowing_port}\n")
            served.hang_up()
            await wait_known(ignorant_port)
            await wait_known(knowing_port, port)
            await send(producer, 200)

            await knowing.kill()
            with pytest.raises(NoRouteError):
                await producer.send(Message("unheard-of", b"x"))  # now it asks the one that knows no broker
            await send(producer, 200)

            await knowing.start()
            await wait_known(knowing_port, port)
            await send(producer, 8)


@pytest.mark.mechanism("N9", "N10")
async def test_a_topic_made_by_itself_has_four_queues_on_each_of_two_brokers_and_its_group_is_made_too(
    tmp_path: Path,
) -> None:
    routes_port, *ports = free_ports(3)
    routes = name_server(tmp_path, routes_port)
    brokers = [
        broker(tmp_path, name, port, [routes_port]) for name, port in zip(["broker-a", "broker-b"], ports, strict=True)
    ]
    inbox = Inbox()
    async with stopped_at_the_end(routes, *brokers):
        await routes.start()
        for one in brokers:
            await one.start()
        await wait_known(routes_port, *ports)
        assert len((await route(routes_port, DEFAULT_TOPIC)).queues) == 2
        # A route that comes after the first message names the one broker that has made the topic by then.
        first_route_only = ClientConfig(poll_name_server_first_delay_s=600)
        async with Producer("writers", url(routes_port), client_config=first_route_only) as producer:
            taken = await send(producer, 16)
        assert taken == {(name, queue_id): 2 for name in ("broker-a", "broker-b") for queue_id in range(QUEUES)}

        async def everywhere() -> bool:
            queues = (await route(routes_port, TOPIC)).queues
            return [(one.broker_name, one.read_queue_count, one.write_queue_count) for one in queues] == [
                ("broker-a", QUEUES, QUEUES),
                ("broker-b", QUEUES, QUEUES),
            ]

        await eventually(everywhere, TIMEOUT_S, "the topic on both brokers")
        assert [await groups(port) for port in ports] == [set(), set()]
        consumer = PushConsumer(GROUP, url(routes_port), consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe(TOPIC)
        consumer.register_message_listener(inbox)
        async with consumer:
            await eventually(lambda: len(inbox.messages) == 16, TIMEOUT_S, "all messages of both brokers")
        assert [await groups(port) for port in ports] == [{GROUP}, {GROUP}]


@pytest.mark.mechanism("N9")
async def test_without_auto_creation_neither_topic_nor_group_is_made(tmp_path: Path) -> None:
    routes_port, port = free_ports(2)
    routes = name_server(tmp_path, routes_port)
    settings = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false"}
    served = broker(tmp_path, "broker-a", port, [routes_port], settings=settings)
    async with stopped_at_the_end(routes, served):
        await routes.start()
        await served.start()
        await wait_known(routes_port, port)
        async with Producer("writers", url(routes_port)) as producer:
            with pytest.raises(NoRouteError, match="none creates topics by itself"):
                await producer.send(Message(TOPIC, b"x"))
            async with Admin(url(routes_port)) as admin:
                await admin.update_topic(TOPIC)
            await send(producer, 4)
        consumer = PushConsumer(GROUP, url(routes_port))
        consumer.subscribe(TOPIC)
        consumer.register_message_listener(Inbox())
        with pytest.raises(BrokerRejectedError, match="autoCreateSubscriptionGroup is false"):
            await consumer.start()
        assert await groups(port) == set()


async def groups(port: int) -> set[str]:
    """The consumer groups that this broker has."""
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}", options=OWN_CONNECTION) as channel:
        stub: Any = admin_service_pb2_grpc.AdminServiceStub(channel)
        answer = await stub.ListSubscriptionGroups(admin_service_pb2.ListSubscriptionGroupsRequest(), timeout=TIMEOUT_S)
        return {config.group for config in answer.groups}

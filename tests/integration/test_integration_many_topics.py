"""A broker with more topics than one gRPC message has room for, and a real name server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from hourglass.mq.v1 import admin_service_pb2_grpc, name_service_pb2_grpc
from hourglass.mq.v1 import name_service_pb2 as pb
from hourglass_local.waiting import eventually
from mq_broker.core.replica_state import BrokerIdentity
from mq_broker.core.topics import TopicTable
from mq_broker.rpc.admin_service import AdminService
from mq_broker.rpc.registration import Registration
from mq_broker.testing import running_broker
from mq_namesrv.app import NameServer
from mq_namesrv.config import NamesrvConfig
from mq_namesrv.core.registration import TOPIC_COUNT_MAX
from mqclient import Admin, ClientConfig
from mqproto.grpc_options import FRAME_BYTES_MAX, SERVER_OPTIONS
from mqproto.names import Address
from osenv import RealClock, SimClock, SimDisk

TIMEOUT_S = 30
IDENTITY = BrokerIdentity("c", "broker-a", 0, "127.0.0.1:10911")
SYSTEM_TOPICS_MAX = 10  # of the broker itself
COUNT = 35_000  # with the longest names: 4.9 MB


@asynccontextmanager
async def name_server(port: int = 0) -> AsyncIterator[Address]:
    server = NameServer(NamesrvConfig(listen_port=port), RealClock())
    address = await server.start()
    yield address
    await server.stop()


async def routed(address: Address, topic: str) -> None:
    """Return when the topic has a route."""
    async with grpc.aio.insecure_channel(str(address)) as channel:
        stub: Any = name_service_pb2_grpc.NameServiceStub(channel)

        async def has_route() -> bool:
            return bool((await stub.QueryRoute(pb.QueryRouteRequest(topic=topic))).route.queues)

        await eventually(has_route, TIMEOUT_S, f"a route for {topic}")


def topics_with(names: Sequence[str]) -> TopicTable:
    """The broker's own topics, and these."""
    topics = TopicTable(auto_create=True, default_queue_count=4, delay_level_count=18)
    for name in names:
        topics.ensure_for_arrival(name, 0)
    return topics


async def test_more_topics_than_a_message_has_room_for_have_routes_also_after_a_restart_of_the_name_server() -> None:
    topics = topics_with([f"{number:0>127}" for number in range(COUNT)])
    assert sum(len(config.topic) for config in topics.all()) > FRAME_BYTES_MAX
    async with name_server() as address:
        running = asyncio.create_task(Registration(IDENTITY, topics, [address], RealClock(), 30).run())
        await routed(address, f"{COUNT - 1:0>127}")
        topics.ensure_for_arrival("new", 0)
        await routed(address, "new")
    async with name_server(address.port):
        await routed(address, "new")
        await routed(address, f"{0:0>127}")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_all_topics_that_a_name_server_can_have_are_listed() -> None:
    """100,000 topics of one broker, with the longest names: 12.9 MB, and one message has 8.5."""
    names = [f"{number:0>127}" for number in range(TOPIC_COUNT_MAX - SYSTEM_TOPICS_MAX)]
    topics = topics_with(names)
    async with name_server() as address:
        running = asyncio.create_task(Registration(IDENTITY, topics, [address], RealClock(), 30).run())
        await routed(address, names[-1])
        async with Admin(f"mq://{address}", client_config=ClientConfig(name_server_timeout_s=TIMEOUT_S)) as admin:
            assert sorted({*names, *(config.topic for config in topics.all())}) == await admin.topic_list()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_all_topics_of_a_broker_are_told_to_an_operator() -> None:
    names = [f"{number:0>127}" for number in range(TOPIC_COUNT_MAX - SYSTEM_TOPICS_MAX)]
    async with running_broker(SimDisk(), SimClock()) as broker:
        for name in names:
            broker.topics.ensure_for_arrival(name, 0)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        registration = Registration(IDENTITY, broker.topics, [], RealClock(), 30)
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(broker, registration, dict), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with Admin("mq://127.0.0.1:1", client_config=ClientConfig(request_timeout_s=TIMEOUT_S)) as admin:
            told = await admin.topic_configs(f"127.0.0.1:{port}")
        assert [config.topic for config in told] == [config.topic for config in broker.topics.all()]
        await server.stop(0)

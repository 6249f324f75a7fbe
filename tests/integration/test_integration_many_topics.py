"""A broker with more topics than one gRPC message has room for, and a real name server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from hourglass.mq.v1 import name_service_pb2 as pb
from hourglass.mq.v1 import name_service_pb2_grpc
from hourglass_local.waiting import eventually
from mq_broker.core.identity import BrokerIdentity
from mq_broker.core.topics import TopicTable
from mq_broker.rpc.registration import Registration
from mq_namesrv.app import NameServer
from mq_namesrv.config import NamesrvConfig
from mqproto.address import Address
from mqproto.grpc_options import FRAME_BYTES_MAX
from osenv import RealClock

TIMEOUT_S = 30
IDENTITY = BrokerIdentity("c", "broker-a", 0, "127.0.0.1:10911")
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


async def test_more_topics_than_a_message_has_room_for_have_routes_also_after_a_restart_of_the_name_server() -> None:
    topics = TopicTable(auto_create=True, default_queue_count=4, delay_level_count=18)
    for number in range(COUNT):
        topics.ensure_for_arrival(f"{number:0>127}", 0)
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

"""Ports addressed in the other protocol: where a client goes on by gRPC, and what it says where it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from hourglass.mq.v1 import name_service_pb2 as name_pb
from mqclient import (
    BrokerUnreachableError,
    ConsumeFromWhere,
    ConsumeStatus,
    IllegalArgumentError,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from mqclient.testing.loopback import loopback_server
from mqclient.transport import methods, open_transport
from osenv import until

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TLS_ALERT = bytes([0x15, 3, 1, 0, 2, 2, 70])  # fatal, protocol_version: what a TLS port says to plain bytes


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """The address of a server that answers each connection like this, and counts none."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_frames_to_a_grpc_port_go_on_by_grpc_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    async with loopback_server() as loopback:
        got: list[MessageExt] = []

        async def listener(messages: list[MessageExt]) -> ConsumeStatus:
            got.extend(messages)
            return ConsumeStatus.CONSUME_SUCCESS

        url = f"mq+frames://{loopback.broker.address}"
        consumer = PushConsumer("closers", url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe("orders")
        consumer.register_message_listener(listener)
        async with consumer, Producer("shop", url) as producer:
            for n in range(5):
                await producer.send(Message("orders", b"%d" % n))
            await until(lambda: len(got) == 5)
    assert f"{loopback.broker.address} speaks HTTP/2" in caplog.text
    assert "mq+grpc://" in caplog.text


async def test_grpc_to_a_port_of_frames_is_told_where_grpc_is() -> None:
    async with loopback_server(by_frames=True) as loopback:
        channel = open_transport(f"mq+grpc://{loopback.broker.address}").open_channel(loopback.broker.address)
        told = r"takes RocketMQ's frames, which mq\+frames:// speaks; gRPC is at .*:8082"
        with pytest.raises(IllegalArgumentError, match=told):
            await channel.unary(methods.QUERY_ROUTE, name_pb.QueryRouteRequest(topic="orders"), 5.0)
        with pytest.raises(IllegalArgumentError, match="takes RocketMQ's frames"):
            await channel.stream(methods.PRODUCE).read()
        await channel.close()


async def test_a_server_that_has_changed_from_grpc_to_frames_is_found_again() -> None:
    async with loopback_server() as before:
        address = before.broker.address
        channel = open_transport(f"mq+frames://{address}").open_channel(address)
        await channel.unary(methods.QUERY_ROUTE, name_pb.QueryRouteRequest(topic="orders"), 5.0)
    port = int(address.rpartition(":")[2])
    async with loopback_server(by_frames=True, port=port):

        async def is_answered() -> bool:
            try:
                await channel.unary(methods.QUERY_ROUTE, name_pb.QueryRouteRequest(topic="orders"), 5.0)
            except (BrokerUnreachableError, IllegalArgumentError):
                return False
            return True

        await until(is_answered)
        await channel.close()


async def closes(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def alerts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(TLS_ALERT)
    await writer.drain()


async def says_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()


async def says_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    while await reader.read(100):
        pass


@pytest.mark.parametrize("answer", [closes, alerts, says_http, says_nothing])
async def test_nothing_but_http2_leads_to_grpc(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    connections = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answer(reader, writer)

    async with answering(counted) as address:
        channel = open_transport(f"mq+frames://{address}").open_channel(address)
        with pytest.raises(BrokerUnreachableError, match=address):
            await channel.unary(methods.QUERY_ROUTE, name_pb.QueryRouteRequest(topic="orders"), 0.5)
        with pytest.raises(BrokerUnreachableError, match=address):
            await channel.stream(methods.PRODUCE).read()
        await channel.close()
    assert connections <= 2  # none by gRPC, which tries again and again
    assert "by gRPC" not in caplog.text

"""gRPC limits that have to fit each other, and what they make of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from mqproto.grpc_options import CHANNEL_OPTIONS, FRAME_BYTES_MAX, KEEPALIVE_MS, SERVER_OPTIONS
from mqproto.record import RECORD_BYTES_MAX

SERVER, CHANNEL = dict(SERVER_OPTIONS), dict(CHANNEL_OPTIONS)


def test_frame_has_room_for_the_largest_record() -> None:
    assert FRAME_BYTES_MAX > RECORD_BYTES_MAX
    assert SERVER["grpc.max_receive_message_length"] >= FRAME_BYTES_MAX


def test_each_side_receives_what_the_other_may_send() -> None:
    assert CHANNEL["grpc.max_send_message_length"] <= SERVER["grpc.max_receive_message_length"]
    assert SERVER["grpc.max_send_message_length"] <= CHANNEL["grpc.max_receive_message_length"]


def test_clients_do_not_ping_more_often_than_the_server_allows() -> None:
    assert CHANNEL["grpc.keepalive_time_ms"] == KEEPALIVE_MS
    assert SERVER["grpc.http2.min_ping_interval_without_data_ms"] < KEEPALIVE_MS


def test_two_servers_cannot_share_a_port_in_silence() -> None:
    assert SERVER["grpc.so_reuseport"] == 0


PREFACE_BYTES, FRAME_HEAD_BYTES = 24, 9  # RFC 9113, 3.4 and 4.1
PING, ACK = 6, 1


class Pings:
    """Counts the pings in what a client sends, which it gets piece by piece."""

    def __init__(self) -> None:
        self.count = 0
        self._left, self._skip = bytearray(), PREFACE_BYTES

    def take(self, data: bytes) -> None:
        self._left += data
        while len(self._left) >= self._skip + FRAME_HEAD_BYTES:
            del self._left[: self._skip]
            length, kind, flags = int.from_bytes(self._left[:3], "big"), self._left[3], self._left[4]
            self.count += kind == PING and not flags & ACK
            self._skip = FRAME_HEAD_BYTES + length


class LargeResponses(grpc.GenericRpcHandler):
    """Each call is answered with the longest message."""

    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        async def call(_request: bytes, _context: Any) -> bytes:
            return bytes(RECORD_BYTES_MAX)

        return grpc.unary_unary_rpc_method_handler(call)


@asynccontextmanager
async def observed(port: int) -> AsyncIterator[tuple[str, Pings]]:
    """The address of a way to `port`, and the pings that clients send on it."""
    pings, tasks = Pings(), list[asyncio.Task[None]]()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_client: bool) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if is_client:
                    pings.take(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        tasks.append(asyncio.create_task(carry(reader, back, is_client=True)))
        tasks.append(asyncio.create_task(carry(there, writer, is_client=False)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", pings
    await asyncio.gather(*tasks)


async def test_a_client_sends_no_pings_whose_answers_wait_behind_a_large_message() -> None:
    """On a slow link they would wait for longer than a ping may take, and the message would never arrive."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((LargeResponses(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with observed(port) as (address, pings):
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            call: Any = channel.unary_unary("/queue/Pull")
            for _ in range(5):
                assert len(await call(b"")) == RECORD_BYTES_MAX
        await server.stop(0)
    assert pings.count == 0

"""A peer that speaks HTTP/2: what shows it, and the answer to a gRPC client."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqremoting import ConnectionConfig, Http2PeerError, NotSentError, Server, connect
from mqremoting.calls import Unsupported
from mqremoting.http2 import PREFACE, Rejection, is_preface, is_settings

SENTENCE = "this port takes frames; gRPC is at 10.0.0.1:8081"
CONFIG = replace(ConnectionConfig(), for_grpc_clients=SENTENCE)


async def test_each_call_of_a_grpc_client_gets_the_sentence_at_once() -> None:
    server = Server(Unsupported(), CONFIG)
    port = await server.listen("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary("/service/Method", bytes, bytes)(b"request", timeout=20)
            assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert raised.value.details() == SENTENCE
        assert len(server.connections) == 1
    await server.close()


async def test_a_grpc_server_is_known_before_a_request_has_left() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    connection = await connect("127.0.0.1", port)
    with pytest.raises(Http2PeerError, match="speaks HTTP/2"):
        await connection.confirm(10)
    await server.stop(None)


async def test_a_peer_of_frames_is_confirmed_and_a_silent_one_is_not() -> None:
    server = Server(Unsupported())
    connection = await connect("127.0.0.1", await server.listen("127.0.0.1", 0))
    await connection.confirm(10)
    await connection.close()
    await server.close()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    async with silent:
        connection = await connect("127.0.0.1", silent.sockets[0].getsockname()[1])
        with pytest.raises(NotSentError, match="has not answered a ping within") as raised:
            await connection.confirm(0.05)
        assert not isinstance(raised.value, Http2PeerError)
        await connection.close()


@given(st.lists(st.integers(1, 40), max_size=10))
def test_an_answer_does_not_depend_on_how_the_bytes_arrive(sizes: list[int]) -> None:
    settings = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0])
    call = bytes([0, 0, 2, 1, 4, 0, 0, 0, 1]) + b"hp"
    data = PREFACE + settings + call
    whole, pieces = Rejection(SENTENCE).feed(data), Rejection(SENTENCE)
    answer, rest = b"", data
    for size in [*sizes, len(data)]:
        answer += pieces.feed(rest[:size]) or b""
        rest = rest[size:]
    assert answer == whole
    assert b"grpc-message" in answer


@given(st.binary(max_size=200))
def test_any_bytes_after_the_preface_are_answered_or_end_the_connection(data: bytes) -> None:
    answer = Rejection(SENTENCE).feed(PREFACE + data)
    assert answer is None or len(answer) <= 13 + 400 * (len(data) // 9 + 1)


def test_what_is_no_preface_ends_the_connection() -> None:
    assert is_preface(PREFACE[:4])
    assert Rejection(SENTENCE).feed(b"PRI x") is None


@pytest.mark.parametrize("data", [b"", b"\0\0\x18\4", b"\0\0\x07\4\0\0\0\0\0", b"\0\0\0\x15\0\0\0\0\0", bytes(20)])
def test_only_whole_settings_of_stream_0_show_a_server_of_http2(data: bytes) -> None:
    assert is_settings(b"\0\0\x18\4\0\0\0\0\0")
    assert not is_settings(data)

"""The same over real sockets, on asyncio's event loop and on uvloop's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

import pytest
import uvloop
from remoting_world import ECHO, ECHO_STREAM, HELD, Recorder

from mqremoting import ConnectionConfig, ConnectionLostError, DeadlineError, NotSentError, Server, connect
from osenv.clock import until

HOST = "127.0.0.1"
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]
MIB = 1024 * 1024


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run_on(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(test)

    return run_on


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_requests_and_streams_of_any_size_go_over_sockets(run: Run) -> None:
    async def test() -> None:
        service = Recorder()
        server = Server(service)
        connection = await connect(HOST, await server.listen(HOST, 0))
        bodies = [bytes((size % 251,)) * size for size in (0, 1, 100, 70_000, 4 * MIB, 16 * MIB - 1_000)]
        responses = await asyncio.gather(*[connection.request(ECHO, body, timeout_s=30) for body in bodies])
        assert [response.body for response in responses] == bodies

        stream = connection.open_stream(ECHO_STREAM)

        async def write() -> None:
            for body in bodies * 3:
                await stream.write(body)
            stream.end()

        writing = asyncio.create_task(write())
        for body in bodies * 3:
            message = await stream.read()
            assert message is not None
            assert message.body == body
        assert await stream.read() is None
        await writing

        (accepted,) = server.connections
        assert (await accepted.request(3, b"down", timeout_s=3)).code == 3
        await server.drain(5)
        await until(lambda: connection.error is not None)
        assert not server.connections
        with pytest.raises(NotSentError):
            await connection.request(ECHO, timeout_s=3)

    run(test())


def test_a_reader_that_stops_holds_up_its_own_stream_alone_on_sockets(run: Run) -> None:
    async def test() -> None:
        service = Recorder()
        server = Server(service)
        connection = await connect(HOST, await server.listen(HOST, 0))
        stream = connection.open_stream(HELD)
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await stream.write(bytes(100_000))
                written += 1

        writing = asyncio.create_task(write())
        await until(lambda: written >= 10 and not stream.may_write)
        for _ in range(50):
            assert len((await connection.request(ECHO, bytes(100_000), timeout_s=30)).body) == 100_000
        assert written <= 12
        writing.cancel()
        await connection.close()
        await until(lambda: not server.connections)
        await server.close()

    run(test())


def test_who_cannot_be_reached_is_an_error_before_anything_is_sent(run: Run) -> None:
    async def test() -> None:
        with closing(socket.create_server((HOST, 0))) as listener:
            port = listener.getsockname()[1]
        with pytest.raises(NotSentError, match=rf"{HOST}:{port} cannot be reached: ") as raised:
            await connect(HOST, port)
        assert isinstance(raised.value.__cause__, OSError)

    run(test())


def test_a_server_that_takes_no_more_connections_closes_the_next(run: Run) -> None:
    async def test() -> None:
        server = Server(Recorder(), connections_max=1)
        port = await server.listen(HOST, 0)
        first = await connect(HOST, port)
        await until(lambda: server.connections)
        second = await connect(HOST, port)
        await until(lambda: second.error is not None)
        assert (await first.request(ECHO, b"x", timeout_s=3)).body == b"x"
        await first.close()
        await until(lambda: not server.connections)
        third = await connect(HOST, port)
        assert (await third.request(ECHO, b"x", timeout_s=3)).body == b"x"
        await third.close()
        await server.close()

    run(test())


def test_a_server_that_dies_ends_what_waits_and_a_deaf_one_times_out(run: Run) -> None:
    async def test() -> None:
        with closing(socket.create_server((HOST, 0))) as deaf:
            connection = await connect(HOST, deaf.getsockname()[1])
            with pytest.raises(DeadlineError):
                await connection.request(ECHO, timeout_s=0.05)
            accepted, _ = deaf.accept()
            waiting = asyncio.create_task(connection.request(ECHO, timeout_s=30))
            await until(lambda: connection.in_flight)
            accepted.close()
            with pytest.raises(ConnectionLostError):
                await waiting

    run(test())


def test_a_connection_without_pings_and_idle_time_lives_on_its_requests(run: Run) -> None:
    async def test() -> None:
        config = ConnectionConfig(idle_s=None, keepalive_s=None)
        server = Server(Recorder(), config)
        connection = await connect(HOST, await server.listen(HOST, 0), config=config)
        assert (await connection.request(ECHO, b"x", timeout_s=3)).body == b"x"
        await connection.send_one_way(7, b"y")
        await server.drain(5)

    run(test())

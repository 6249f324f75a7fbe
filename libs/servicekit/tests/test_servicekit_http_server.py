"""The HTTP server against clients that send slowly, endlessly or nothing, over real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body

import telemetry
from osenv import SimClock
from servicekit.auth import Tokens
from servicekit.http.application import build_api
from servicekit.http.limits import AdmissionLimit
from servicekit.http.middleware import BODY_MAX_S, CallerOf
from servicekit.http.server import DEFAULT_LIMITS, ConnectionLimits, HttpServer
from servicekit.monitoring import Health
from servicekit.testing import until

SOON_S = 0.05  # a limit in time that a test waits for
BODY = b'{"dish": "soup"}'


@dataclass(frozen=True, slots=True)
class Served:
    port: int
    clock: SimClock
    token: str
    connections: AsyncExitStack

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.connections.push_async_callback(_abort, writer)
        writer.write(sent)
        return reader, writer

    def post(self, *, token: bool = True, length: int = len(BODY)) -> bytes:
        bearer = f"Authorization: Bearer {self.token}\r\n" if token else ""
        return (
            f"POST /dishes HTTP/1.1\r\nHost: kitchen\r\n{bearer}"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def served(limits: ConnectionLimits = DEFAULT_LIMITS) -> AsyncIterator[Served]:
    """A service with four places in work, of which three are for writes."""
    telemetry.configure("kitchen", "CRITICAL")
    router, clock = APIRouter(), SimClock()

    @router.post("/dishes", status_code=201)
    async def cook(caller: CallerOf, dish: Annotated[dict[str, Any], Body()]) -> str:
        return f"{dish['dish']} for {caller.subject}"

    tokens = Tokens([("test", "a secret that is known to tests only")], clock)
    api = build_api(
        title="Kitchen", summary="Kitchen", routers=[router], health=Health({}, clock), problem_of_error={},
        tokens=tokens, rate_limit=None, clock=clock, admission_limit=AdmissionLimit(4, 500),
    )  # fmt: skip
    stop = asyncio.Event()
    async with AsyncExitStack() as connections:
        server = connections.enter_context(HttpServer("127.0.0.1", 0, limits))
        serving = asyncio.create_task(server.serve(api, stop))
        try:
            async with AsyncExitStack() as clients:
                yield Served(server.port, clock, tokens.issue("buyer", []), clients)
        finally:
            stop.set()
            await serving


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and head of the next answer; its body is read as well."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = [line for line in head.lower().splitlines() if line.startswith(b"content-length:")]
    if length:
        await reader.readexactly(int(length[0].partition(b":")[2]))
    return int(head.split()[1]), head.lower()


async def drip_until_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a byte at a time until the server ends the connection."""
    while not reader.at_eof() and reader.exception() is None:
        writer.write(b"x")
        await asyncio.sleep(0.001)


async def test_bodies_that_never_come_stop_no_write() -> None:
    async with served() as kitchen:
        for _ in range(12):
            await kitchen.connect(kitchen.post())
        reader, _ = await kitchen.connect(kitchen.post() + BODY)
        answer = asyncio.create_task(answer_of(reader))
        while not answer.done():
            await kitchen.clock.advance(0.05)
        assert (await answer)[0] == 201


async def test_a_body_that_does_not_come_in_time_is_answered_408_and_the_connection_ends() -> None:
    async with served() as kitchen:
        reader, _ = await kitchen.connect(kitchen.post() + BODY[:-1])
        await until(lambda: kitchen.clock.timers > 0)
        await kitchen.clock.advance(BODY_MAX_S)
        status, head = await answer_of(reader)
        assert status == 408
        assert b"application/problem+json" in head
        assert await reader.read() == b""


async def test_a_request_without_a_token_is_rejected_before_its_body_is_awaited() -> None:
    async with served() as kitchen:
        reader, _ = await kitchen.connect(kitchen.post(token=False))
        assert (await answer_of(reader))[0] == 401


async def test_a_head_without_an_end_is_rejected_at_its_limit() -> None:
    async with served() as kitchen:
        reader, writer = await kitchen.connect(b"GET /health/live HTTP/1.1\r\nHost: kitchen\r\nX-Endless: ")
        most, sent = 8 << 20, 0  # more than the buffers of two sockets
        with suppress(ConnectionError):
            while not reader.at_eof() and reader.exception() is None and sent < most:
                writer.write(b"x" * 4096)
                await writer.drain()
                sent += 4096
                await asyncio.sleep(0)
        assert sent < most


async def test_a_head_over_the_limit_is_answered_431() -> None:
    async with served(dataclasses.replace(DEFAULT_LIMITS, head_max_bytes=1024)) as kitchen:
        reader, _ = await kitchen.connect(b"GET /health/live HTTP/1.1\r\nX-Endless: " + b"x" * 1024)
        status, head = await answer_of(reader)
        assert (status, b"connection: close" in head) == (431, True)


async def test_a_connection_that_says_nothing_ends() -> None:
    async with served(dataclasses.replace(DEFAULT_LIMITS, head_max_s=SOON_S)) as kitchen:
        reader, _ = await kitchen.connect()
        assert await reader.read() == b""


async def test_a_head_that_is_not_complete_in_time_is_answered_408() -> None:
    async with served(dataclasses.replace(DEFAULT_LIMITS, head_max_s=SOON_S)) as kitchen:
        reader, _ = await kitchen.connect(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert (await answer_of(reader))[0] == 408
        assert await reader.read() == b""


async def test_a_head_that_comes_drop_by_drop_gets_no_more_time() -> None:
    async with served(dataclasses.replace(DEFAULT_LIMITS, head_max_s=SOON_S)) as kitchen:
        reader, writer = await kitchen.connect(b"GET / HTTP/1.1\r\nX-Slow: ")
        await drip_until_the_end(reader, writer)


async def test_the_rest_of_a_rejected_body_keeps_no_connection() -> None:
    async with served(dataclasses.replace(DEFAULT_LIMITS, body_max_s=SOON_S)) as kitchen:
        reader, writer = await kitchen.connect(kitchen.post(token=False, length=60_000))
        assert (await answer_of(reader))[0] == 401
        await drip_until_the_end(reader, writer)


async def test_a_connection_is_kept_for_the_next_request() -> None:
    async with served() as kitchen:
        reader, writer = await kitchen.connect()
        for _ in range(3):
            writer.write(kitchen.post() + BODY)
            assert (await answer_of(reader))[0] == 201


async def test_one_connection_too_many_ends_the_one_that_has_said_nothing_for_longest() -> None:
    async with served(dataclasses.replace(DEFAULT_LIMITS, connections_max=3)) as kitchen:
        busy, writer = await kitchen.connect(kitchen.post() + BODY[:-1])  # in the middle of its request
        await until(lambda: kitchen.clock.timers > 0)
        silent = [(await kitchen.connect())[0] for _ in range(3)]
        reader, asking = await kitchen.connect()
        assert await silent[0].read() == b""
        asking.write(kitchen.post() + BODY)
        assert (await answer_of(reader))[0] == 201
        writer.write(BODY[-1:])
        assert (await answer_of(busy))[0] == 201

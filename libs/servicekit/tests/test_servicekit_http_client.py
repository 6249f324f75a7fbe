"""The client of other services: whatever happens to requests, their connections are there for the next ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from servicekit.http.client import http_client

ANSWER = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    """The URL of a server that closes each connection after its answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"


async def test_a_request_that_is_cancelled_as_it_gets_its_connection_gives_it_back() -> None:
    async with server() as url, http_client(timeout=5.0, connections_max=1) as http:
        async with http.stream("GET", url) as first:
            waiting = asyncio.create_task(http.get(url))
            after = asyncio.create_task(http.get(url))
            await asyncio.sleep(0)
            assert not waiting.done()
            await first.aread()  # it ends: the one that waits is given a new connection, and has not opened it
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await after).text == "ok"
        assert (await http.get(url)).text == "ok"

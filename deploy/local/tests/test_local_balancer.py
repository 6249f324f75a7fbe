"""The balancer before the instances of a service."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from hourglass_local.balancer import Balancer
from hourglass_local.ports import LOOPBACK, free_ports


@asynccontextmanager
async def instance(port: int) -> AsyncIterator[None]:
    """Answers each line with its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(b"%d %s" % (port, line))
        writer.close()

    async with await asyncio.start_server(answer, LOOPBACK, port):
        yield


async def ask(port: int) -> int:
    """The port of the instance that answered, 0 when the connection ended instead."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(b"who\n")
    try:
        line = await reader.readline()
    except ConnectionError:
        line = b""
    writer.close()
    return int(line.split()[0]) if line else 0


async def test_connections_go_to_every_instance_in_turn_and_past_one_that_is_away() -> None:
    port, first, second = free_ports(3)
    balancer = Balancer(port, [first, second])
    await balancer.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(balancer.close)
        assert await ask(port) == 0
        async with instance(first), instance(second):
            assert Counter([await ask(port) for _ in range(6)]) == {first: 3, second: 3}
        async with instance(second):
            assert [await ask(port) for _ in range(3)] == [second] * 3


async def test_its_end_is_the_end_of_its_connections() -> None:
    port, first = free_ports(2)
    balancer = Balancer(port, [first])
    await balancer.start()
    async with instance(first):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"who\n")
        assert await reader.readline() == b"%d who\n" % first
        await balancer.close()
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection(LOOPBACK, port)
    await balancer.close()

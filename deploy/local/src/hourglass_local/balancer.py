"""What stands before the instances of a service, as a Service of Kubernetes does: one address, and each connection goes
to the next instance that takes it.

Invariant: an instance that takes no connections is passed over; one that takes them and answers nothing is not noticed,
so that its callers run into their own time-outs, and meet another instance with their next connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from hourglass_local.ports import LOOPBACK

CONNECT_MAX_S = 1.0
CHUNK_BYTES = 64 * 1024
CONNECTIONS_MAX = 512  # two instances' callers have 32 connections each


class Balancer:
    """Runs on the event loop of its caller."""

    def __init__(self, port: int, instances: Sequence[int]) -> None:
        """Listens on the loopback `port` for the `instances`, which are ports as well."""
        self._port = port
        self._instances = tuple(instances)
        self._turn = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises OSError."""
        self._server = await asyncio.start_server(self._accept, LOOPBACK, self._port)

    async def close(self) -> None:
        """End all connections. Harmless when it does not run."""
        if self._server is None:
            return
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in self._instances:
                port = self._instances[self._turn % len(self._instances)]
                self._turn += 1
                try:
                    async with asyncio.timeout(CONNECT_MAX_S):
                        instance = await asyncio.open_connection(LOOPBACK, port)
                except OSError:  # refused, or TimeoutError
                    continue
                await _pass_on((reader, writer), instance)
                return
        finally:
            writer.close()


_Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _pass_on(caller: _Side, instance: _Side) -> None:
    """Until one of them is gone."""
    ways = [asyncio.create_task(_copy(caller[0], instance[1])), asyncio.create_task(_copy(instance[0], caller[1]))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        instance[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # a connection that one side has lost ends for the other, too
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()

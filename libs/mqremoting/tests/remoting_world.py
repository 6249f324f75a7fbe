"""Two joined connections on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from mqremoting import Call, Connection, ConnectionConfig, Stream, not_supported
from mqremoting.testing import Link, join
from osenv import SimClock

ECHO, HELD, ECHO_STREAM = 20_001, 20_002, 20_003


class Recorder:
    """Echoes, holds requests until the test answers them, and hands streams to the test. Or does what it is told to."""

    def __init__(self) -> None:
        self.held: list[Call] = []
        self.one_ways: list[bytes] = []
        self.streams: list[Stream] = []
        self.cancelled = 0
        self.request: Callable[[Call], Coroutine[Any, Any, None] | None] | None = None
        self.stream: Callable[[Stream], Coroutine[Any, Any, None] | None] | None = None

    def on_request(self, call: Call) -> Coroutine[Any, Any, None] | None:
        command = call.command
        if self.request is not None:
            return self.request(call)
        if command.is_one_way:
            self.one_ways.append(bytes(command.body))
        elif command.code == ECHO:
            call.respond(command.body, ext_fields=command.ext_fields)
        elif command.code == HELD:
            self.held.append(call)
            return self.hold(call)
        else:
            raise not_supported(command.code)
        return None

    def on_stream(self, stream: Stream) -> Coroutine[Any, Any, None] | None:
        self.streams.append(stream)
        if self.stream is not None:
            return self.stream(stream)
        return self.echo(stream) if stream.opening.code == ECHO_STREAM else None

    async def hold(self, call: Call) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def echo(self, stream: Stream) -> None:
        try:
            while (message := await stream.read()) is not None:
                await stream.write(message.body)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class World:
    """A client and a server."""

    def __init__(
        self,
        config: ConnectionConfig | None = None,
        *,
        client_config: ConnectionConfig | None = None,
        piece_bytes: int = 256 * 1024,
    ) -> None:
        self.clock = SimClock()
        self.client_side, self.server_side = Recorder(), Recorder()
        config = config or ConnectionConfig()
        self.client = Connection(self.client_side, client_config or config, self.clock)
        self.server = Connection(self.server_side, config, self.clock)
        self.link: Link = join(self.client, self.server, piece_bytes)

    async def begin(self, code: int, body: bytes = b"", timeout_s: float = 3.0) -> asyncio.Task[Any]:
        """A request that is on its way."""
        task = asyncio.create_task(self.client.request(code, body, timeout_s=timeout_s))
        await self.clock.settle()
        return task

    async def open(self, code: int = HELD) -> tuple[Stream, Stream]:
        """A stream's two ends."""
        stream = self.client.open_stream(code)
        await self.clock.settle()
        return stream, self.server_side.streams[-1]


def raw(connection: Connection, data: bytes) -> None:
    """Have bytes come that no connection of ours sends."""
    connection.data_received(data)

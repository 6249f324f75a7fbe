"""Two connections that are joined without a network, and what a network does to them.

    link = join(client, server)
    link.to_server.hold()           # the server reads nothing
    link.to_server.cut_after(100)   # the connection breaks when so many more bytes have come through
    link.go_silent()                # bytes vanish without an error

Bytes travel by the event loop, in order, in pieces of at most `piece_bytes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

LOW_WATER_SHARE = 4  # asyncio's


class MemoryTransport(asyncio.Transport):
    """What one side writes to. `hold` and the like act on the way from it to the other side."""

    def __init__(self, protocol: asyncio.Protocol, name: str, piece_bytes: int) -> None:
        super().__init__({"peername": (name, 0)})
        self.other: MemoryTransport
        self.bytes_written = 0
        """How many bytes its side has written in all."""
        self._protocol = protocol
        self._piece_bytes = piece_bytes
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()
        self._high = 64 * 1024
        self._is_full = self._is_held = self._is_silent = self._is_closing = self._is_lost = self._is_scheduled = False
        self._cut_after: int | None = None

    def write(self, data: Any) -> None:
        if self._is_closing or self._is_lost:
            return
        self.bytes_written += len(data)
        self._waiting += data
        if len(self._waiting) > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()
        self._schedule()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return len(self._waiting)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def close(self) -> None:
        self._is_closing = True
        self._schedule()

    def abort(self) -> None:
        self._waiting.clear()
        self._lose_both(None, ConnectionResetError("connection reset by peer"))

    def hold(self) -> None:
        """The other side reads nothing until `release`."""
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        self._schedule()

    def cut_after(self, count: int) -> None:
        """Break the connection when so many more bytes have come through."""
        self._cut_after = count
        self._schedule()

    def go_silent(self) -> None:
        """What is written vanishes."""
        self._is_silent = True
        self._schedule()

    def lose(self, error: Exception | None) -> None:
        """Tell the protocol that the connection is gone."""
        if not self._is_lost:
            self._is_lost = True
            self._loop.call_soon(self._protocol.connection_lost, error)

    def _lose_both(self, here: Exception | None, there: Exception | None) -> None:
        self.lose(here)
        if not self._is_silent:
            self.other.lose(there)

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_lost:
            self._is_scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        if self._is_lost or (self._is_held and not self._is_silent):
            return
        count = min(len(self._waiting), self._piece_bytes)
        if self._cut_after is not None:
            count = min(count, self._cut_after)
            self._cut_after -= count
        piece = bytes(self._waiting[:count])
        del self._waiting[:count]
        if piece and not self._is_silent and not self.other.is_closing():
            self.other.receive(piece)
        if self._cut_after == 0:
            self._lose_both(ConnectionResetError("cut"), ConnectionResetError("cut"))
        elif self._waiting:
            self._schedule()
        elif self._is_closing:
            self._lose_both(None, None)
        if self._is_full and len(self._waiting) <= self._high // LOW_WATER_SHARE and not self._is_lost:
            self._is_full = False
            self._protocol.resume_writing()

    def receive(self, data: bytes) -> None:
        """Bytes have come."""
        self._protocol.data_received(data)


class Link:
    """Both ways between two connections."""

    def __init__(self, client: asyncio.Protocol, server: asyncio.Protocol, piece_bytes: int) -> None:
        self.to_server = MemoryTransport(client, "server", piece_bytes)
        self.to_client = MemoryTransport(server, "client", piece_bytes)
        self.to_server.other, self.to_client.other = self.to_client, self.to_server

    def cut(self) -> None:
        """Break the connection now; what is on the way is lost."""
        self.to_server.lose(ConnectionResetError("cut"))
        self.to_client.lose(ConnectionResetError("cut"))

    def go_silent(self) -> None:
        """Have both ways lose everything, as when a machine has died or a cable was pulled."""
        self.to_server.go_silent()
        self.to_client.go_silent()


def join(client: asyncio.Protocol, server: asyncio.Protocol, piece_bytes: int = 256 * 1024) -> Link:
    """Connect two protocols of the running event loop."""
    link = Link(client, server, piece_bytes)
    server.connection_made(link.to_client)
    client.connection_made(link.to_server)
    return link

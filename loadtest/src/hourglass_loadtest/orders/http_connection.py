"""As much of HTTP/1.1 as POST /orders needs: one request at a time on a connection that stays open.

A general client would cost more processor time than the service under test, on the same two cores.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hourglass_loadtest.measure.errors import MeasureError

HEAD_END, LENGTH = b"\r\n\r\n", b"content-length:"


class HttpConnection:
    """Open after `open`."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Raises OSError."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def ask(self, request: bytes) -> int:
        """Send the whole request; the status of its answer. Raises MeasureError, OSError.

        A server closes a connection that was idle for seconds: then the request, which has a key, goes over a new one.
        """
        try:
            return await self._ask(request)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            await self.open()
        try:
            return await self._ask(request)
        except asyncio.IncompleteReadError as error:
            raise MeasureError("orders has closed the connection before its answer") from error

    async def _ask(self, request: bytes) -> int:
        if self._reader is None or self._writer is None:
            raise AssertionError("the connection has been opened")
        self._writer.write(request)
        head = await self._reader.readuntil(HEAD_END)
        await self._reader.readexactly(_body_bytes(head))
        return int(head[9:12])

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with suppress(ConnectionError):  # the other side was faster
                await self._writer.wait_closed()


def post_head(host: str, port: int, path: str, token: str) -> str:
    """The head of a POST up to its key and length, which differ from request to request."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\n"
    )


def _body_bytes(head: bytes) -> int:
    lowered = head.lower()
    at = lowered.find(LENGTH)
    if at < 0:
        raise MeasureError(f"an answer does not say how long it is: {head!r}")
    return int(lowered[at + len(LENGTH) : lowered.index(b"\r\n", at)])

"""Bidirectional streams: requests are handled as they come, replies leave in the order in which they were given.

Invariant: one task writes to a stream; whoever has a reply puts it into the queue and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc


class Replies:
    """What waits to be written to one stream. `END` closes the stream after what was put before it."""

    END = object()

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, reply: object) -> None:
        """Have `reply` written: a message, or a coroutine that makes one, which later replies then wait for."""
        self._queue.put_nowait(reply)

    async def write_to(self, context: Any) -> None:
        """Write until the end, or until the stream breaks."""
        while (reply := await self._queue.get()) is not self.END:
            await context.write(await reply if isinstance(reply, Coroutine) else reply)

    def drop(self) -> None:
        """Forget what was not written."""
        while not self._queue.empty():
            if isinstance(reply := self._queue.get_nowait(), Coroutine):
                reply.close()


async def pump(context: Any, replies: Replies, handle: Callable[[Any], None], stopping: asyncio.Event) -> None:
    """Hand each request to `handle` and write the replies, until the peer has sent its last one or the server stops.

    Then no request is read any more, and the replies to those that were handled are still written. What `handle` raises
    ends the stream likewise, and is raised here. Cancelled when the peer is gone.
    """
    reader = asyncio.create_task(_read_all(context, handle), name="stream reader")
    writer = asyncio.create_task(replies.write_to(context), name="stream writer")
    stop = asyncio.create_task(stopping.wait(), name="stream stop")
    try:
        await asyncio.wait((reader, writer, stop), return_when=asyncio.FIRST_COMPLETED)
        has_read_all = reader.done()
        reader.cancel()  # what it read from here on would be handled, and its reply stand behind the end
        replies.put(Replies.END)
        await writer  # also before a refusal: gRPC sends no status while a message is being written
        if has_read_all:
            reader.result()
    finally:
        for task in (reader, writer, stop):
            task.cancel()
        replies.drop()


async def _read_all(context: Any, handle: Callable[[Any], None]) -> None:
    while (request := await context.read()) is not grpc.aio.EOF:
        handle(request)

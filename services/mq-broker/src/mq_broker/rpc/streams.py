"""Bidirectional streams: requests are handled as they come, replies leave in the order in which they were given.

Invariants: one task writes to a stream; whoever has a reply puts it into the queue and goes on; what waits there counts
in the response memory; a stream whose share is full reads no requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CoroutineType
from typing import Any

import grpc

from mq_broker.core.limits import RESPONSE_COPIES, SMALL_RESPONSE_BYTES
from mq_broker.processor.long_polling import Share
from osenv import Clock
from osenv.clock import timeout

# Between a stream's end and the end of its connection, as HTTP servers linger: what its peer has under way is read and
# dropped meanwhile. A connection that is closed on unread bytes is reset, and a peer that meets the reset while it
# writes drops the answers that it has not read yet.
LINGER_S = 0.25


class Replies:
    """What waits to be written to one stream. `END` closes the stream after what was put before it."""

    END = object()

    def __init__(self, share: Share) -> None:
        self.share = share
        self._queue: asyncio.Queue[tuple[Any, int]] = asyncio.Queue()
        self._written = asyncio.Event()

    def put(self, reply: object, size: int = SMALL_RESPONSE_BYTES) -> None:
        """Have `reply` written: a message, or a coroutine that makes one, which later replies then wait for.

        `size` is what it takes of the response memory, in bytes.
        """
        self.share.take(size)
        self._queue.put_nowait((reply, size))

    def put_command(self, command: Any) -> None:
        """Have a command written that the client has not asked for; one that does not read loses its connection."""
        share, size = self.share, SMALL_RESPONSE_BYTES + RESPONSE_COPIES * command.ByteSize()
        if share.used and share.memory.room(share.client) < size:
            share.memory.break_connections([share.client])
        else:
            self.put(command, size)

    async def room(self) -> None:
        """Return when one more request may be read."""
        while not self.share.may_read:
            self._written.clear()
            await self._written.wait()

    async def write_to(self, context: Any) -> None:
        """Write until the end, or until the stream breaks."""
        share = self.share
        while True:
            reply, size = await self._queue.get()
            if reply is self.END:
                return
            message = await reply if isinstance(reply, CoroutineType) else reply
            share.writing_since = share.memory.clock.monotonic()
            await context.write(message)
            share.writing_since = None
            share.give_back(size)
            self._written.set()

    def drop(self) -> None:
        """Forget what was not written."""
        while not self._queue.empty():
            reply, _ = self._queue.get_nowait()
            if isinstance(reply, CoroutineType):
                reply.close()


class OpenStreams:
    """The streams of one server and their common end."""

    def __init__(self, stopping: asyncio.Event) -> None:
        self.stopping = stopping
        self._count = 0
        self._none_is_open = asyncio.Event()
        self._none_is_open.set()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """A stream is open for as long as the block runs."""
        self._count += 1
        self._none_is_open.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none_is_open.set()

    async def end(self, clock: Clock, within_s: float) -> None:
        """End all of them, and give the peers of those that were open `LINGER_S` to read what was written last.

        Streams that are still open after `within_s` seconds are left behind.
        """
        self.stopping.set()
        if self._none_is_open.is_set():
            return
        try:
            async with timeout(clock, within_s):
                await self._none_is_open.wait()
                await clock.sleep(LINGER_S)
        except TimeoutError:
            return


async def pump(context: Any, replies: Replies, handle: Callable[[Any], None], stopping: asyncio.Event) -> None:
    """Hand each request to `handle` and write the replies, until the peer has sent its last one or the server stops.

    Then no request is read any more, and the replies to those that were handled are still written. What `handle` raises
    ends the stream likewise, and is raised here. Cancelled when the peer is gone.
    """
    reader = asyncio.create_task(_read_all(context, replies, handle), name="stream reader")
    writer = asyncio.create_task(replies.write_to(context), name="stream writer")
    stop = asyncio.create_task(stopping.wait(), name="stream stop")
    try:
        await asyncio.wait((reader, writer, stop), return_when=asyncio.FIRST_COMPLETED)
        has_read_all = reader.done()
        reader.cancel()  # what it read from here on would be handled, and its reply stand behind the end
        replies.put(Replies.END, 0)
        await writer  # also before a refusal: gRPC sends no status while a message is being written
        if has_read_all:
            reader.result()
    finally:
        for task in (reader, writer, stop):
            task.cancel()
        replies.drop()


async def _read_all(context: Any, replies: Replies, handle: Callable[[Any], None]) -> None:
    while (request := await context.read()) is not grpc.aio.EOF:
        handle(request)
        if not replies.share.may_read:
            await replies.room()

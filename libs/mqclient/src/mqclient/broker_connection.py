"""Everything that goes to one broker: a channel for streams, and a second one for unary calls (DESIGN.md, "The wire").

Invariant: no held poll and no slow stream can block a unary call, because the two share no connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.config import ClientConfig
from mqclient.consumer.poll_stream import PollStreams
from mqclient.lifecycle import BackgroundTasks
from mqclient.session import Session, SessionHandler
from mqclient.transport import Channel, Method, Stream, Transport
from mqclient.transport.base import RequestT, ResponseT


class BrokerConnection:
    """Made when a broker's address is first met; the session is separate, because only brokers of a route get one.

    What is produced goes over `stream_channel`, too, as long as this is the master of its name (produce_streams.py).
    """

    def __init__(self, address: str, transport: Transport, config: ClientConfig, handler: SessionHandler) -> None:
        self.address = address
        self._config = config
        self._transport = transport
        self._tasks = BackgroundTasks(transport.clock)
        self.stream_channel: Channel = transport.open_channel(address)
        self._unary_channel = transport.open_channel(address)
        self._calls = 0
        self.poll = PollStreams(address, self.stream_channel, transport.clock, self._tasks, self._left_out)
        self._handler = handler
        self.session = Session(address, self.stream_channel, handler, config, transport.clock)

    def _left_out(self, progress: broker_pb.GroupProgress) -> None:
        """A report was of before somebody has set the offsets: as if the broker said so over the session."""
        reset = broker_pb.ResetConsumerOffset(group=progress.group, queues=progress.queues)
        self._handler.command(self.address, broker_pb.SessionResponse(reset_consumer_offset=reset), lambda _: None)

    async def unary(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float | None = None
    ) -> ResponseT:
        """One call on the second channel, by default within `request_timeout_s`."""
        self._calls += 1
        try:
            return await self._unary_channel.unary(method, request, timeout_s or self._config.request_timeout_s)
        finally:
            self._calls -= 1

    @asynccontextmanager
    async def stream(self, method: Method[RequestT, ResponseT]) -> AsyncIterator[Stream[RequestT, ResponseT]]:
        """A stream on a connection of its own, for so many bytes that they would hold up all others; given up behind
        the block.
        """
        self._calls += 1
        channel = self._transport.open_channel(self.address)
        try:
            yield channel.stream(method)
        finally:
            self._calls -= 1
            await channel.close()

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its answer; a held poll can be asked again anywhere, and does not count."""
        return not self._calls

    async def close(self) -> None:
        """Break off the session, fail what is unanswered, leave nothing behind."""
        await self.session.close()
        self.poll.close()
        await self._tasks.close()
        await self.stream_channel.close()
        await self._unary_channel.close()

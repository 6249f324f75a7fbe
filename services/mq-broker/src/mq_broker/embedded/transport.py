"""The transport behind `memory://name`, found through the entry-point group `mqclient.transports`."""

from __future__ import annotations

import asyncio

from mq_broker.embedded.calls import AbortedCallError, BrokenStream, CallContext, MemoryStream, broken
from mq_broker.embedded.embedded_broker import NAME_SERVER_ADDRESS, EmbeddedBroker, find
from mqclient.errors import RequestTimeoutError
from mqclient.transport import Method, RequestT, ResponseT
from osenv.clock import timeout


class MemoryTransport:
    """Implements `mqclient.transport.Transport`: the broker's own clock and chance are the client's too."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self.clock = broker.clock
        self.rng = broker.rng
        self.local_ip = "127.0.0.1"
        self.name_servers = (NAME_SERVER_ADDRESS,)
        self.name_server_source = None

    def open_channel(self, address: str) -> MemoryChannel:
        """Name server and broker answer at any address."""
        return MemoryChannel(self._broker)


class MemoryChannel:
    """Implements `mqclient.transport.Channel`."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._streams: list[MemoryStream | BrokenStream] = []

    async def unary(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        try:
            async with timeout(self._broker.clock, timeout_s):
                response: ResponseT = await asyncio.shield(self._broker.call(method.path, request, CallContext()))
                return response
        except TimeoutError as error:
            raise RequestTimeoutError(f"{method.path}: no answer within {timeout_s:g} s") from error
        except AbortedCallError as error:
            raise error.as_client_error() from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise broken() from None  # the server's task was cancelled, not ours

    def stream(self, method: Method[RequestT, ResponseT]) -> MemoryStream | BrokenStream:
        stream = self._broker.stream(method.path)
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        for stream in self._streams:
            stream.cancel()
        self._streams.clear()


def open_transport(rest: str) -> MemoryTransport:
    """The transport to the running embedded broker named `rest`.

    Raises IllegalArgumentError; IllegalStateError on another event loop than the broker's.
    """
    broker = find(rest)
    broker.require_its_loop()
    return MemoryTransport(broker)

"""Channels and streams that end in a Python object instead of a network."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from mqclient.errors import BrokerUnreachableError, ConnectionLostError, MQClientError, RequestTimeoutError
from mqclient.transport import Method, RequestT, ResponseT
from osenv import Clock
from osenv.clock import timeout


class FakeServer(Protocol):
    """What stands at an address."""

    down: bool

    async def unary(self, path: str, request: Any) -> Any: ...

    def stream_request(self, stream: FakeStream, request: Any) -> None: ...

    def stream_ended(self, stream: FakeStream) -> None: ...


class FakeChannel:
    """Implements `Channel`. `server` is who stands at the address, None when nobody listens."""

    def __init__(self, address: str, server: FakeServer | None, clock: Clock) -> None:
        self.closed = False
        self.address = address
        self._server = server
        self._clock = clock
        self._streams: list[FakeStream] = []

    async def unary(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        await asyncio.sleep(0)
        server = self._server
        if server is None or server.down:
            raise BrokerUnreachableError(f"{self.address}: nobody listens")
        try:
            async with timeout(self._clock, timeout_s):
                response: ResponseT = await server.unary(method.path, request)
                return response
        except TimeoutError:
            raise RequestTimeoutError(f"{self.address} did not answer within {timeout_s:g} s") from None

    def stream(self, method: Method[RequestT, ResponseT]) -> FakeStream:
        stream = FakeStream(self.address, method.path, self._server)
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        self.closed = True
        for stream in self._streams:
            stream.cancel()


class FakeStream:
    """Implements `Stream`; the server puts its answers in with `answer`."""

    def __init__(self, address: str, path: str, server: FakeServer | None) -> None:
        self.path = path
        self._address = address
        self._server = server
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._end: MQClientError | None = None
        self._ended = False
        if server is None or server.down:
            self._finish(BrokerUnreachableError(f"{address}: nobody listens"))

    async def write(self, request: Any) -> None:
        await asyncio.sleep(0)
        if self._ended or self._server is None:
            raise self._end or ConnectionLostError(f"{self._address}: the stream has ended")
        self._server.stream_request(self, request)

    async def read(self) -> Any:
        if self._ended and self._answers.empty():
            if self._end is not None:
                raise self._end
            return None
        answer = await self._answers.get()
        if isinstance(answer, MQClientError):
            raise answer
        return answer

    async def done_writing(self) -> None:
        self._finish(None)

    def cancel(self) -> None:
        self._finish(ConnectionLostError(f"{self._address}: the stream was given up"))

    def answer(self, response: Any) -> None:
        """From the server: the next answer."""
        if not self._ended:
            self._answers.put_nowait(response)

    def break_off(self) -> None:
        """From the test: the connection is gone."""
        self._finish(ConnectionLostError(f"{self._address}: the connection broke"))

    def _finish(self, error: MQClientError | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._end = error
        self._answers.put_nowait(error)
        if self._server is not None:
            self._server.stream_ended(self)

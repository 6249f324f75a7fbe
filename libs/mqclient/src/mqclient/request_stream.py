"""A stream on which every answer names its request; it opens at first use, and again after it broke.

Invariants: an answer future belongs to exactly one opened stream; when that stream breaks, all its unanswered futures
fail with the error that broke it, and the next request opens a new stream. One task at a time calls `send`
and `tell`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic

from mqclient.errors import ConnectionLostError, MQClientError
from mqclient.lifecycle import BackgroundTasks
from mqclient.transport.base import Channel, Method, RequestT, ResponseT, Stream


class _Opened(Generic[RequestT, ResponseT]):
    """One stream and what it still owes."""

    def __init__(self, stream: Stream[RequestT, ResponseT]) -> None:
        self.stream = stream
        self.answers: dict[int, asyncio.Future[ResponseT]] = {}


class RequestStream(Generic[RequestT, ResponseT]):
    """Requests to `address` by `method`, matched to their answers by `answer_id`."""

    def __init__(
        self,
        address: str,
        channel: Channel,
        method: Method[RequestT, ResponseT],
        answer_id: Callable[[ResponseT], int],
        tasks: BackgroundTasks,
        *,
        told: Callable[[ResponseT], None] = lambda _: None,
    ) -> None:
        """`told` gets what comes without having been asked for, with 0 as its answer id."""
        self._told = told
        self._address = address
        self._channel = channel
        self._method = method
        self._answer_id = answer_id
        self._tasks = tasks
        self._opened: _Opened[RequestT, ResponseT] | None = None

    async def send(self, request_id: int, request: RequestT, answer: asyncio.Future[ResponseT]) -> None:
        """Write the request; `answer` gets what comes back, or what broke the stream, which is never raised here."""
        opened = self._opened or self._open()
        opened.answers[request_id] = answer
        try:
            await opened.stream.write(request)
        except MQClientError as error:
            self._break(opened, error)

    async def tell(self, request: RequestT) -> None:
        """Write a request that has no answer of its own, if the stream is open; a new stream knows nothing of it."""
        opened = self._opened
        if opened is None:
            return
        try:
            await opened.stream.write(request)
        except MQClientError as error:
            self._break(opened, error)

    def close(self) -> None:
        """Give the stream up; what is unanswered fails with ConnectionLostError."""
        if self._opened is not None:
            self._break(self._opened, ConnectionLostError(f"the client closed its stream to {self._address}"))

    def _open(self) -> _Opened[RequestT, ResponseT]:
        opened = _Opened(self._channel.stream(self._method))
        self._opened = opened
        self._tasks.start(self._read(opened), f"mqclient read {self._method.path} {self._address}")
        return opened

    async def _read(self, opened: _Opened[RequestT, ResponseT]) -> None:
        try:
            while (response := await opened.stream.read()) is not None:
                if (answer_id := self._answer_id(response)) == 0:
                    self._told(response)
                answer = opened.answers.pop(answer_id, None)
                if answer is not None and not answer.done():
                    answer.set_result(response)
            error: MQClientError = ConnectionLostError(f"the broker at {self._address} ended the stream")
        except MQClientError as caught:
            error = caught
        self._break(opened, error)

    def _break(self, opened: _Opened[RequestT, ResponseT], error: MQClientError) -> None:
        if self._opened is opened:
            self._opened = None
        opened.stream.cancel()
        for answer in opened.answers.values():
            if not answer.done():
                answer.set_exception(error)
        opened.answers.clear()

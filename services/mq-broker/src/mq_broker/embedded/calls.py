"""Calls without a network: a servicer's method runs as a task, and queues stand for the two directions of a stream.

Invariants: whoever reads gets what was written, in order, then the end; a call whose server dies breaks, and never ends
in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from mqclient.errors import ConnectionLostError, IllegalArgumentError, MQClientError

Servicer = Callable[[Any, Any], Awaitable[Any]]


class AbortedCallError(Exception):
    """The servicer has refused the call."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details

    def as_client_error(self) -> MQClientError:
        """What the client sees of it."""
        if self.code is grpc.StatusCode.INVALID_ARGUMENT:
            return IllegalArgumentError(self.details)
        return ConnectionLostError(f"the call was ended: {self.details}")


def broken() -> ConnectionLostError:
    """What a call sees whose server has died."""
    return ConnectionLostError("the connection to the embedded broker broke")


class CallContext:
    """What a servicer sees of its caller."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.responses: asyncio.Queue[Any] = asyncio.Queue()
        self._callbacks: list[Callable[[Any], None]] = []

    async def read(self) -> Any:
        """The next request, or EOF."""
        return await self.requests.get()

    async def write(self, response: Any) -> None:
        """Hand a response to the caller."""
        self.responses.put_nowait(response)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call when the call is over."""
        self._callbacks.append(callback)

    def end(self) -> None:
        """The call is over: its caller has the answer, or nobody has it."""
        while self._callbacks:
            self._callbacks.pop()(self)

    def peer(self) -> str:
        """Who calls: all callers in this process are one."""
        return "memory"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        """Refuse the call."""
        raise AbortedCallError(code, details)


class MemoryStream:
    """A stream to a servicer's method that runs in this process; `mqclient.transport.Stream` with no network."""

    def __init__(self, method: Servicer, name: str) -> None:
        self._context = CallContext()
        self._error: MQClientError | None = None
        self._task = asyncio.create_task(self._serve(method), name=name)

    async def _serve(self, method: Servicer) -> None:
        end: Any = grpc.aio.EOF
        try:
            await method(None, self._context)
        except AbortedCallError as error:
            self._error = end = error.as_client_error()
        except asyncio.CancelledError:
            self._error = end = broken()
            raise
        finally:
            self._context.responses.put_nowait(end)

    @property
    def task(self) -> asyncio.Task[None]:
        """The servicer at work."""
        return self._task

    async def write(self, request: Any) -> None:
        if self._task.done():
            raise self._error or ConnectionLostError("the stream has ended")
        self._context.requests.put_nowait(request)

    async def read(self) -> Any:
        response = await self._context.responses.get()
        if response is grpc.aio.EOF or isinstance(response, MQClientError):
            self._context.responses.put_nowait(response)  # the end stays the end
            if isinstance(response, MQClientError):
                raise response
            return None
        return response

    async def done_writing(self) -> None:
        self._context.requests.put_nowait(grpc.aio.EOF)

    def cancel(self) -> None:
        self._error = ConnectionLostError("the stream was given up")
        self._task.cancel()


class BrokenStream:
    """A stream to nobody."""

    def __init__(self, error: MQClientError) -> None:
        self._error = error

    async def write(self, request: Any) -> None:
        raise self._error

    async def read(self) -> Any:
        raise self._error

    async def done_writing(self) -> None:
        """Nobody to tell."""

    def cancel(self) -> None:
        """Nothing to give up."""

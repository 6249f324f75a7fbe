"""Requests in flight, one that was sent and one that was received, and the interface of their handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from mqremoting.command import ONE_WAY, RESPONSE, Command, ResponseCode
from mqremoting.errors import DeadlineError, RejectedError

if TYPE_CHECKING:
    from mqremoting.connection import Connection
    from mqremoting.streams import Stream

log = logging.getLogger(__name__)


class Service(Protocol):
    """The handlers of the requests and streams that the peer begins.

    Either method does its work at once and returns None, or returns a coroutine, which runs as a task: it is cancelled
    when the peer gives up, or is gone. RejectedError, at once or from the coroutine, is told to the peer; any other
    exception is logged, and the peer hears SYSTEM_ERROR. Both methods run in the step in which the frame came.
    """

    def on_request(self, call: Call) -> Coroutine[Any, Any, None] | None:
        """Answer by `call.respond`, now or later. A coroutine that ends without it has failed."""

    def on_stream(self, stream: Stream) -> Coroutine[Any, Any, None] | None:
        """Read and write, or set a callback. The stream closes in order when the coroutine ends."""


class Unsupported:
    """A service that rejects everything: for a client of which the server wants nothing."""

    def on_request(self, call: Call) -> None:
        raise not_supported(call.command.code)

    def on_stream(self, stream: Stream) -> None:
        raise not_supported(stream.opening.code)


def not_supported(code: int) -> RejectedError:
    """What a service raises for a code that it does not have."""
    return RejectedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request code {code} is not supported here")


class Call:
    """A request that has come. It is in flight until it was responded to and its task has ended."""

    __slots__ = ("_connection", "_has_response", "command", "task")

    def __init__(self, connection: Connection, command: Command) -> None:
        self._connection = connection
        self._has_response = command.is_one_way
        self.command = command
        self.task: asyncio.Task[None] | None = None

    @property
    def connection(self) -> Connection:
        """Where it came from: `connection.peer`, and requests and streams the other way."""
        return self._connection

    @property
    def has_response(self) -> bool:
        """Whether the peer does not wait: it has the response, wants none, or has given up."""
        return self._has_response

    def respond(
        self,
        body: bytes | memoryview = b"",
        *,
        code: int = 0,
        remark: str = "",
        ext_fields: dict[str, str] | None = None,
    ) -> None:
        """Send the response, in the form of the request. `body` stays as it is from now on.

        Does nothing when the peer waits no longer. Await `connection.writable()` afterwards to give the memory of a
        large body back only when the transport has taken most of it. Raises FrameError for a response that fits in no
        frame; then there is none yet.
        """
        if self._has_response:
            return
        request, config = self.command, self._connection.config
        response = Command(
            code,
            request.opaque,
            RESPONSE,
            body,
            ext_fields or {},
            remark,
            config.language,
            config.version,
            request.serialization,
        )
        self._connection.write_command(response)
        self._has_response = True
        if self.task is None:
            self._connection.incoming.forget_call(self)

    def give_up(self) -> None:
        """The peer waits no longer, or is gone."""
        self._has_response = True
        if self.task is not None:
            self.task.cancel()
        else:
            self._connection.incoming.forget_call(self)

    def begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the handler's coroutine as a task."""
        self.task = self._connection.loop.create_task(work)
        self.task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.task = None
        if (error := failure_of(task)) is not None:
            self.fail(rejection_of(error, f"request code {self.command.code}"))
        elif not self._has_response:
            self.respond(code=ResponseCode.SYSTEM_ERROR, remark="the handler ended without a response")
        self._connection.incoming.forget_call(self)

    def fail(self, rejection: RejectedError) -> None:
        """Respond with the rejection."""
        self.respond(code=rejection.code, remark=rejection.remark)


class Request:
    """A request that was sent."""

    __slots__ = ("command", "deadline", "response")

    def __init__(self, command: Command, deadline: float, response: asyncio.Future[Command]) -> None:
        self.command = command
        self.deadline = deadline
        self.response = response

    def received(self, command: Command) -> None:
        """Take the response."""
        if not self.response.done():
            self.response.set_result(command)

    def fail(self, error: Exception) -> None:
        if not self.response.done():
            self.response.set_exception(error)

    def expire(self) -> None:
        self.fail(DeadlineError(f"no response to request {self.command.opaque}, code {self.command.code}, in time"))


def give_up_command(request: Command, close_bit: int) -> Command:
    """The frame that gives a request up."""
    return Command(0, request.opaque, close_bit | ONE_WAY, serialization=request.serialization)


def failure_of(task: asyncio.Task[None]) -> Exception | None:
    """What a task has ended with, unless it was cancelled."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, Exception):
        raise error  # KeyboardInterrupt and its like are no response
    return error


def rejection_of(error: Exception, what: str) -> RejectedError:
    """The response to an exception in a handler. An exception that is no rejection is logged."""
    if isinstance(error, RejectedError):
        return error
    log.error("%s failed", what, exc_info=error)
    return RejectedError(ResponseCode.SYSTEM_ERROR, f"{what} failed: {type(error).__name__}")

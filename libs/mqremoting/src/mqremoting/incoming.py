"""The requests and streams that the peer has begun on one connection, within their limits, and their handlers.

Invariants: under one opaque at most one request or stream of the peer is in flight, one-way requests apart; the bytes
in flight are those of the frames of the requests in the tables.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from mqremoting.calls import Call, Service, rejection_of
from mqremoting.command import Command, ResponseCode
from mqremoting.config import OPEN
from mqremoting.errors import FrameError, RejectedError, RemotingError
from mqremoting.streams import Stream

if TYPE_CHECKING:
    from mqremoting.connection import Connection


class Incoming:
    """The tables of one connection. They start the handlers of what comes."""

    def __init__(self, connection: Connection, service: Service) -> None:
        self._connection = connection
        self._config = connection.config
        self._service = service
        self._came: dict[int, Call | Stream] = {}
        self._one_ways: set[Call] = set()
        self._streams = 0
        self._bytes = 0

    @property
    def count(self) -> int:
        """Requests and streams in flight."""
        return len(self._came) + len(self._one_ways)

    def request(self, command: Command) -> None:
        """Take a request. Raises FrameError for an opaque that is in use."""
        self._connection.used()
        call = Call(self._connection, command)
        if (rejection := self._rejection(command)) is not None:
            call.fail(rejection)
            return
        if command.is_one_way:
            self._one_ways.add(call)
        else:
            self._came[command.opaque] = call
        self._bytes += command.size
        try:
            work = self._service.on_request(call)
        except Exception as error:
            call.fail(rejection_of(error, f"request code {command.code}"))
            work = None
        if work is not None:
            self._begin(call, work)
        elif command.is_one_way:
            self.forget_call(call)

    def stream_frame(self, command: Command) -> None:
        """Take a frame of a stream that the peer has begun, or begins. Raises FrameError for one that may not come."""
        opaque = command.opaque
        if not command.flag & OPEN:
            if isinstance(stream := self._came.get(opaque), Stream):
                stream.received(command)
            return  # else the rest of a stream that has ended here
        self._connection.used()
        rejection = self._rejection(command)
        stream = Stream(self._connection, command, began_here=False)
        if rejection is None and self._streams >= self._config.streams_max:
            rejection = _busy(f"{self._streams:,} streams are open on this connection; at most as many are allowed")
        self._came[opaque] = stream
        self._streams += 1
        if rejection is not None:
            stream.close(rejection.code, rejection.remark)
            return
        stream.widen()
        try:
            work = self._service.on_stream(stream)
        except Exception as error:
            stream.close_failed(error)
        else:
            if work is not None:
                self._begin(stream, work)

    def _begin(self, came: Call | Stream, work: Coroutine[Any, Any, None]) -> None:
        if self._connection.error is None:
            came.begin_task(work)
        else:
            work.close()

    def _rejection(self, command: Command) -> RejectedError | None:
        """Why a new request or stream is not taken. Raises FrameError for an opaque that is in use."""
        if command.opaque in self._came and (not command.is_one_way or command.flag & OPEN):
            raise FrameError(
                f"{self._connection.peer} began a request with opaque {command.opaque}, which is in flight"
            )
        if self._connection.drains:
            return RejectedError(ResponseCode.SERVICE_NOT_AVAILABLE, "this server is shutting down")
        if (count := self.count) >= self._config.requests_max:
            return _busy(f"{count:,} requests are in flight on this connection; at most as many are allowed")
        waiting, most = self._bytes + command.size + self._connection.unread_bytes, self._config.request_bytes_max
        if waiting > most and waiting > command.size:
            return _busy(f"{waiting:,} bytes are in flight on this connection; at most {most:,} are allowed")
        return None

    def give_up(self, opaque: int) -> None:
        """The peer no longer waits for the response to this request."""
        if isinstance(call := self._came.get(opaque), Call):
            call.give_up()

    def forget_call(self, call: Call) -> None:
        """It is not in flight any more. Harmless when it was not."""
        command = call.command
        if command.is_one_way:
            if call not in self._one_ways:
                return
            self._one_ways.discard(call)
        elif self._came.get(command.opaque) is call:
            del self._came[command.opaque]
        else:
            return
        self._bytes -= command.size
        self._connection.one_is_done()

    def forget_stream(self, stream: Stream) -> None:
        """It is not in flight any more. Harmless when it was not."""
        if self._came.get(stream.opening.opaque) is stream:
            del self._came[stream.opening.opaque]
            self._streams -= 1
            self._connection.one_is_done()

    def end(self, error: RemotingError) -> None:
        """The connection has ended."""
        for came in list(self._came.values()):
            if isinstance(came, Stream):
                came.lose(error)
            else:
                came.give_up()
        for call in list(self._one_ways):
            call.give_up()


def _busy(remark: str) -> RejectedError:
    return RejectedError(ResponseCode.SYSTEM_BUSY, remark)

"""The native services on RocketMQ's frames: the servicers that gRPC calls, called by mqremoting.

A request code stands for a method (request_codes.py), the body is the protobuf message, and a code of a response other
than 0 takes the place of gRPC's status. A method of a servicer is called as grpc.aio calls it, with a request and a
context; so there is one implementation of each method behind both protocols.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from mqproto.codes import ResponseCode
from mqproto.grpc_options import FRAME_BYTES_MAX, KEEPALIVE_MS, PING_TIMEOUT_MS, WINDOW_BYTES
from mqproto.request_codes import REQUEST_CODES
from mqremoting import Call, Connection, ConnectionConfig, FrameLimits, RejectedError, RemotingError, Stream
from mqremoting import not_supported as no_such_code

FIELDS_BYTES_MAX = 65_536  # of a frame, beside its body
UNREAD_BYTES_MAX = 16 * 1024 * 1024
IDLE_CLIENT_S, IDLE_SERVER_S = 60.0, 120.0  # the client closes first: a server never closes on a request under way

TAKES_FRAMES = "this port takes RocketMQ's frames"

_FRAMES = FrameLimits(frame_bytes_max=2 * FRAME_BYTES_MAX + FIELDS_BYTES_MAX, header_bytes_max=FIELDS_BYTES_MAX)


def _config(idle_s: float, window_bytes: int) -> ConnectionConfig:
    return ConnectionConfig(
        frames=_FRAMES,
        request_bytes_max=UNREAD_BYTES_MAX,
        unread_bytes_max=UNREAD_BYTES_MAX,
        window_bytes=window_bytes,
        idle_s=idle_s,
        keepalive_s=KEEPALIVE_MS / 1000,
        ping_timeout_s=PING_TIMEOUT_MS / 1000,
    )


SERVER_CONFIG = _config(IDLE_SERVER_S, window_bytes=WINDOW_BYTES // 4)
CLIENT_CONFIG = _config(IDLE_CLIENT_S, window_bytes=WINDOW_BYTES)


def server_config(host: str, grpc_port: int) -> ConnectionConfig:
    """Of a server whose gRPC port is this one, which gRPC clients are told that come here."""
    sentence = f"{TAKES_FRAMES}, which mq+frames:// speaks; gRPC is at {host}:{grpc_port}, for mq+grpc://"
    return replace(SERVER_CONFIG, for_grpc_clients=sentence)


Span = Callable[[str, Mapping[str, str]], AbstractContextManager[object]]

# What a servicer aborts a call with. Every other status says that the outcome is not known.
_CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: ResponseCode.INVALID_PARAMETER,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResponseCode.SYSTEM_BUSY,
}


@dataclass(frozen=True, slots=True)
class _Method:
    descriptor: MethodDescriptor
    request_type: Any
    handle: Callable[[Any, Any], Awaitable[Any]]

    @property
    def path(self) -> str:
        """As gRPC writes it."""
        return f"/{self.descriptor.containing_service.full_name}/{self.descriptor.name}"

    @property
    def is_stream(self) -> bool:
        return bool(self.descriptor.client_streaming or self.descriptor.server_streaming)

    def parse(self, body: bytes | memoryview) -> Any:
        """The message of a frame, parsed once. Raises RejectedError."""
        if len(body) > FRAME_BYTES_MAX:
            raise _invalid(f"a request of {len(body):,} bytes; at most {FRAME_BYTES_MAX:,} are allowed")
        try:
            return self.request_type.FromString(body)
        except DecodeError as error:
            raise _invalid(f"the body is no {self.request_type.DESCRIPTOR.name}: {error}") from error


class FramesService:
    """Implements `mqremoting.Service` by servicers; before any is added, every request is told to come again."""

    def __init__(self, calls_max: int | None = None, span: Span | None = None) -> None:
        """One more request than `calls_max`, of all connections together, is rejected with SYSTEM_BUSY. `span` is what
        a request runs in that has fields, which only those of callers have that trace it; it gets path and fields.
        """
        self._span = span
        self._methods: dict[int, _Method] = {}
        self._calls_max = calls_max
        self._calls = 0

    def add(self, service: ServiceDescriptor, servicer: Any) -> None:
        """Serve each method of `service` that `servicer` has by the method of that name."""
        for method in service.methods:
            if (handle := getattr(servicer, method.name, None)) is not None:
                code = REQUEST_CODES[f"/{service.full_name}/{method.name}"]
                self._methods[code] = _Method(method, GetMessageClass(method.input_type), handle)

    def on_request(self, call: Call) -> Coroutine[Any, Any, None]:
        method = self._method(call.command.code, is_stream=False)
        if self._calls_max is not None and self._calls >= self._calls_max:
            raise RejectedError(ResponseCode.SYSTEM_BUSY, f"{self._calls} calls run; at most as many are allowed")
        return self._answer(method, call)

    def on_stream(self, stream: Stream) -> Coroutine[Any, Any, None]:
        method = self._method(stream.opening.code, is_stream=True)
        return _serve(method, _StreamContext(stream, method))

    def _method(self, code: int, *, is_stream: bool) -> _Method:
        if not self._methods:
            raise RejectedError(ResponseCode.SERVICE_NOT_AVAILABLE, "this server is starting")
        method = self._methods.get(code)
        if method is None:
            raise no_such_code(code)
        if method.is_stream is not is_stream:
            kind = "a stream" if method.is_stream else "a request with one response"
            raise _invalid(f"{method.descriptor.full_name}, request code {code}, is {kind}")
        return method

    async def _answer(self, method: _Method, call: Call) -> None:
        context = _Context(call.connection)
        self._calls += 1
        fields = call.command.ext_fields
        try:
            with self._span(method.path, fields) if fields and self._span is not None else nullcontext():
                response: Message = await method.handle(method.parse(call.command.body), context)
            call.respond(response.SerializeToString())
            if context.is_watched:
                await call.connection.writable()
        finally:
            self._calls -= 1
            context.end()


async def _serve(method: _Method, context: _StreamContext) -> None:
    try:
        request = None if method.descriptor.client_streaming else await context.read()
        await method.handle(request, context)
    finally:
        context.end()


class _Context:
    """What a servicer sees of its caller: the methods of grpc.aio.ServicerContext that servicers here use."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._callbacks: list[Callable[[Any], None]] = []

    @property
    def is_watched(self) -> bool:
        """Whether there is something to be done when the caller has its response."""
        return bool(self._callbacks)

    def peer(self) -> str:
        """Who calls, as gRPC writes it."""
        host, _, port = self._connection.peer.rpartition(":")
        return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call when the call is over."""
        self._callbacks.append(callback)

    def end(self) -> None:
        """The call is over."""
        while self._callbacks:
            self._callbacks.pop()(self)

    async def abort(self, status: grpc.StatusCode, details: str) -> NoReturn:
        """Reject the call."""
        raise RejectedError(_CODES.get(status, ResponseCode.SYSTEM_ERROR), details)


class _StreamContext(_Context):
    """A stream that broke ends its handler, as one of gRPC does: what runs for it is cancelled.

    Beside grpc.aio's methods it has those that spare a task for each side of the stream: `deliver_to` (the stream's:
    each frame in the step in which it comes, to be parsed by `parse`) and `write_now`.
    """

    def __init__(self, stream: Stream, method: _Method) -> None:
        super().__init__(stream.connection)
        self._stream = stream
        self.parse = method.parse
        self.deliver_to = stream.deliver_to

    async def read(self) -> Any:
        """The next request, or EOF."""
        try:
            command = await self._stream.read()
        except RemotingError:
            raise asyncio.CancelledError from None
        return grpc.aio.EOF if command is None else self.parse(command.body)

    def write_now(self, response: Message) -> bool:
        """Give the response to the connection, if that takes it at once. A response that fits in no frame is left to
        `write`, which raises what is wrong.
        """
        body = response.SerializeToString()
        if not self._stream.may_write or len(body) > FRAME_BYTES_MAX:
            return False
        self._stream.write_now(body)
        return True

    async def write(self, response: Message) -> None:
        """Return when the connection has taken the response, and the peer has room for it."""
        body = response.SerializeToString()
        try:
            await self._stream.write(body)
        except RemotingError:
            if self._stream.is_open:  # the response fits in no frame
                raise
            raise asyncio.CancelledError from None


def _invalid(remark: str) -> RejectedError:
    return RejectedError(ResponseCode.INVALID_PARAMETER, remark)

"""RocketMQ's frames over TCP (mqremoting): a channel is one connection, opened at first use and again when it broke.

A method is a request code with the protobuf message as the body (mqproto/request_codes.py); a response's code takes the
place of gRPC's status. The errors are those of gRPC's transport for the same events:

| what happened                                                                         | error                   |
|---------------------------------------------------------------------------------------|-------------------------|
| no connection, or the server says that it did nothing: it is starting, draining, busy | BrokerUnreachableError  |
| a frame left, and the connection or the stream ended before the answer                | ConnectionLostError     |
| no answer in time                                                                     | RequestTimeoutError     |
| the server finds no sense in the request, or it fits in no frame                      | IllegalArgumentError    |

A server that shows by its first bytes that it speaks HTTP/2 is used by gRPC instead: a name server or a broker of an
earlier version, or one that was addressed at its other port. No error of another kind leads there, no time that is over
and no connection that breaks. A connection is confirmed by a ping before the first request, so nothing is sent twice.

Invariant: BrokerUnreachableError is raised only when the request can have done nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Generic

from opentelemetry.trace import SpanKind, get_current_span

from mqclient.errors import (
    BrokerUnreachableError,
    ConnectionLostError,
    IllegalArgumentError,
    MQClientError,
    RequestTimeoutError,
)
from mqclient.transport import Method, RequestT, ResponseT, not_a_name_server
from mqclient.transport.grpc_transport import GrpcChannel, GrpcStream
from mqproto.codes import ResponseCode
from mqproto.frames_service import CLIENT_CONFIG, TAKES_FRAMES
from mqproto.names import parse_address
from mqproto.request_codes import REQUEST_CODES
from mqremoting import (
    Connection,
    DeadlineError,
    FrameError,
    Http2PeerError,
    NotSentError,
    RejectedError,
    RemotingError,
    Stream,
    connect,
)
from osenv import Clock
from osenv.clock import timeout
from telemetry import inject, is_tracing, tracer
from telemetry.grpc_server import frames_call_attributes

logger = logging.getLogger("mqclient.frames_transport")

CONNECT_TIMEOUT_S = 2.0

_NOTHING_DONE = {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}
_NO_SUCH_CODE = 3  # RocketMQ's REQUEST_CODE_NOT_SUPPORTED
_NO_SENSE = {_NO_SUCH_CODE, ResponseCode.INVALID_PARAMETER}


class FramesChannel:
    """Implements `Channel`."""

    def __init__(self, address: str, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._grpc: GrpcChannel | None = None
        self._uses_grpc = False
        self._is_closed = False

    async def unary(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        if not (is_tracing() and get_current_span().get_span_context().is_valid):
            return await self._unary(method, request, timeout_s, {})
        with tracer("mqclient").start_as_current_span(
            method.path, kind=SpanKind.CLIENT, attributes=frames_call_attributes(method.path)
        ):
            fields: dict[str, str] = {}
            inject(fields)
            return await self._unary(method, request, timeout_s, fields)

    async def _unary(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float, fields: dict[str, str]
    ) -> ResponseT:
        if self._uses_grpc:
            return await self._unary_by_grpc(method, request, timeout_s)
        body = request.SerializeToString()
        deadline = self._clock.monotonic() + timeout_s
        try:
            connection = self._usable or await self._connect(timeout_s)
            left_s = deadline - self._clock.monotonic()
            response = await connection.request(REQUEST_CODES[method.path], body, timeout_s=left_s, ext_fields=fields)
        except Http2PeerError as shown:
            self.grpc(shown)
            return await self._unary_by_grpc(method, request, deadline - self._clock.monotonic())
        except RemotingError as error:
            raise client_error(self._address, error) from error
        if response.code == _NO_SUCH_CODE and method.is_name_servers:
            raise IllegalArgumentError(not_a_name_server(self._address))
        if response.code:
            raise rejected_error(self._address, RejectedError(response.code, response.remark))
        return method.response_type.FromString(response.body)  # type: ignore[arg-type]  # takes a view as well

    async def _unary_by_grpc(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        try:
            return await self.grpc().unary(method, request, timeout_s)
        except (BrokerUnreachableError, IllegalArgumentError) as error:
            if isinstance(error, BrokerUnreachableError) or TAKES_FRAMES in str(error):
                self._uses_grpc = False  # the next call looks what is there now
            raise

    def grpc(self, shown: Http2PeerError | None = None) -> GrpcChannel:
        """The channel to a server that has shown that it takes gRPC."""
        if shown is not None and not self._uses_grpc:
            logger.warning("%s; it is used by gRPC, as mq+grpc:// does from the start", shown)
            self._uses_grpc = True
        if self._grpc is None:
            self._grpc = GrpcChannel(self._address)
        return self._grpc

    def stream(self, method: Method[RequestT, ResponseT]) -> FramesStream[RequestT, ResponseT]:
        return FramesStream(self._address, method, self)

    async def close(self) -> None:
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._grpc is not None:
            await self._grpc.close()
        if self._connection is not None:
            await self._connection.close()

    async def connection(self) -> Connection:
        """One that takes requests. Raises NotSentError."""
        return self._usable or await self._connect(CONNECT_TIMEOUT_S)

    @property
    def _usable(self) -> Connection | None:
        connection = self._connection
        return connection if connection is not None and connection.is_usable else None

    async def _connect(self, timeout_s: float) -> Connection:
        """A new connection, the same for all who wait for one."""
        if self._is_closed:
            raise NotSentError("the channel is closed")
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._open(), name=f"mqclient connect {self._address}")
            self._connecting.add_done_callback(self._opened)
        connecting = self._connecting
        try:
            async with timeout(self._clock, timeout_s):
                return await asyncio.shield(connecting)
        except TimeoutError:
            raise NotSentError(f"not reached within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            if connecting.cancelled():
                raise NotSentError("the channel was closed") from None
            raise

    async def _open(self) -> Connection:
        try:
            host, port = parse_address(self._address)
        except ValueError as error:
            raise NotSentError(str(error)) from error
        connection = await connect(host, port, config=CLIENT_CONFIG, clock=self._clock, timeout_s=CONNECT_TIMEOUT_S)
        try:
            await connection.confirm(CONNECT_TIMEOUT_S)
        except BaseException:
            connection.close_soon()
            raise
        return connection

    def _opened(self, connecting: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not connecting.cancelled() and connecting.exception() is None:
            self._connection = connecting.result()
            if self._is_closed:
                self._connection.close_soon()


class FramesStream(Generic[RequestT, ResponseT]):
    """Implements `Stream`. It opens with the first write or read; one that could not be opened stays broken."""

    def __init__(self, address: str, method: Method[RequestT, ResponseT], channel: FramesChannel) -> None:
        self._address = address
        self._method = method
        self._channel = channel
        self._stream: Stream | None = None
        self._by_grpc: GrpcStream[RequestT, ResponseT] | None = None  # when the server takes gRPC
        self._opening: asyncio.Task[Stream | GrpcStream[RequestT, ResponseT]] | None = None
        self._has_ended = self._is_given_up = False

    async def write(self, request: RequestT) -> None:
        stream = self._stream or await self._open()
        if isinstance(stream, GrpcStream):
            await stream.write(request)
            return
        body = request.SerializeToString()
        try:
            await stream.write(body)
        except NotSentError as error:
            raise ConnectionLostError(f"{self._address}: the broker has ended the stream") from error
        except RemotingError as error:
            raise client_error(self._address, error) from error

    async def read(self) -> ResponseT | None:
        stream = self._stream or await self._open()
        if isinstance(stream, GrpcStream):
            return await stream.read()
        try:
            command = await stream.read()
        except RemotingError as error:
            raise client_error(self._address, error) from error
        if command is None:
            return None
        return self._method.response_type.FromString(command.body)  # type: ignore[arg-type]  # as above

    async def done_writing(self) -> None:
        self._has_ended = True
        if self._stream is not None:
            self._stream.end()
        elif self._by_grpc is not None:
            await self._by_grpc.done_writing()

    def cancel(self) -> None:
        self._is_given_up = True
        if self._stream is not None:
            self._stream.cancel()
        elif self._by_grpc is not None:
            self._by_grpc.cancel()
        elif self._opening is not None:
            self._opening.cancel()

    async def _open(self) -> Stream | GrpcStream[RequestT, ResponseT]:
        """The open stream, the same for its writer and its reader. Raises MQClientError."""
        if self._opening is None:
            if self._is_given_up:
                raise ConnectionLostError(f"{self._address}: the stream was given up")
            self._opening = asyncio.create_task(self._begin(), name=f"mqclient open {self._method.path}")
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except RemotingError as error:
            raise client_error(self._address, error) from error
        except asyncio.CancelledError:
            if opening.cancelled():
                raise ConnectionLostError(f"{self._address}: the stream was given up") from None
            raise

    async def _begin(self) -> Stream | GrpcStream[RequestT, ResponseT]:
        try:
            connection = await self._channel.connection()
        except Http2PeerError as shown:
            self._by_grpc = self._channel.grpc(shown).stream(self._method)
            if self._has_ended:
                await self._by_grpc.done_writing()
            return self._by_grpc
        self._stream = connection.open_stream(REQUEST_CODES[self._method.path])
        if self._has_ended:
            self._stream.end()
        return self._stream


def client_error(address: str, error: RemotingError) -> MQClientError:
    """The error of the client's tree for one of mqremoting."""
    if isinstance(error, RejectedError):
        return rejected_error(address, error)
    if isinstance(error, NotSentError):
        return BrokerUnreachableError(f"{address}: {error}")
    if isinstance(error, DeadlineError):
        return RequestTimeoutError(f"{address}: {error}")
    if isinstance(error, FrameError):
        return IllegalArgumentError(f"{address}: {error}")
    return ConnectionLostError(f"{address}: {error}")


def rejected_error(address: str, rejection: RejectedError) -> MQClientError:
    """The error for a code with which a method did not answer itself."""
    text = f"{address}: {rejection}"
    if rejection.code in _NO_SENSE:
        return IllegalArgumentError(text)
    return BrokerUnreachableError(text) if rejection.code in _NOTHING_DONE else ConnectionLostError(text)

"""`mq://`, `mq+http://` and `mq+dns://`: gRPC over TCP, and where the addresses of the name servers come from.

`mq+http://host:port/path`: an HTTP server that answers `host:port;host:port`, as for RocketMQ's TopAddressing: status
200, the first line of the body, 3 s at most. `mq+dns://name:port`: every A record of the name is a name server, as for
a headless service. An answer that is empty or broken is a NoRouteError, and the older addresses stay in use.

This is the only module of the client that knows gRPC and sockets, and that makes their errors the client's.

Invariant: BrokerUnreachableError is raised only when no byte of the request can have left; every doubt is an
OutcomeUnknownError.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import Any, Generic, NoReturn, TypeVar
from urllib.parse import urlsplit

import grpc
from opentelemetry.trace import get_current_span

from mqclient.errors import (
    BrokerUnreachableError,
    ConnectionLostError,
    IllegalArgumentError,
    MQClientError,
    NoRouteError,
    RequestTimeoutError,
)
from mqclient.lifecycle import call_for
from mqclient.transport import Method, NameServerSource, RequestT, ResponseT
from mqproto.grpc_options import CHANNEL_OPTIONS
from mqproto.names import Address, parse_address, parse_address_list
from osenv import Clock, RealClock, Rng, SystemRng
from osenv.network import own_ipv4
from telemetry import is_tracing

_OPTIONS = (
    *CHANNEL_OPTIONS,
    # Without this, gRPC puts every channel to one address onto one connection, and a held poll could block unary calls.
    ("grpc.use_local_subchannel_pool", 1),
    # How long connecting takes at most; for gRPC's own 20 s, a channel that is closed meanwhile would keep its socket.
    ("grpc.min_reconnect_backoff_ms", 2_000),
)

# How gRPC's core begins the details of an UNAVAILABLE that came from connecting, before anything was sent.
_NEVER_CONNECTED = (
    "failed to connect",
    "DNS resolution failed",
    "Name resolution failure",
    "connections to all backends",
)
_NAME_SERVICE = "/hourglass.mq.v1.NameService/"
_INVALID_REQUEST_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
}
NAMESRV_ADDR = "NAMESRV_ADDR"  # RocketMQ's environment variable

HTTP_PORT = 80
HTTP_OK = 200
HTTP_TIMEOUT_S = 3.0  # RocketMQ's for fetchNSAddr
ANSWER_BYTES_MAX = 65_536

T = TypeVar("T")


class GrpcTransport:
    """Implements `Transport` on the real network and the real clock."""

    def __init__(self, name_servers: tuple[str, ...], source: NameServerSource | None = None) -> None:
        self.clock: Clock = RealClock()
        self.rng: Rng = SystemRng()
        self.local_ip = own_ipv4()
        self.name_servers = name_servers
        self.name_server_source = source

    def open_channel(self, address: str) -> GrpcChannel:
        return GrpcChannel(address)


def open_transport(rest: str) -> GrpcTransport:
    """The entry point of `mq://`: `rest` is the list of name servers, or empty for the one in NAMESRV_ADDR.

    As in RocketMQ, the variable counts only where the program names no address. Raises IllegalArgumentError.
    """
    addresses, origin = rest, f"mq://{rest}"
    if not rest:
        addresses, origin = os.environ.get(NAMESRV_ADDR, ""), f"mq:// with the environment variable {NAMESRV_ADDR}"
    try:
        return GrpcTransport(tuple(str(address) for address in parse_address_list(addresses)))
    except ValueError as error:
        raise IllegalArgumentError(f"{origin}: {error}") from error


def open_transport_by_http(rest: str) -> GrpcTransport:
    """The entry point of `mq+http://`: `rest` is `host:port/path`. Raises IllegalArgumentError."""
    return GrpcTransport((), http_source(rest))


def open_transport_by_dns(rest: str) -> GrpcTransport:
    """The entry point of `mq+dns://`: `rest` is `name:port`. Raises IllegalArgumentError."""
    return GrpcTransport((), dns_source(rest))


def _interceptors() -> list[grpc.aio.ClientInterceptor]:
    """Spans around unary calls that belong to one; what the client asks in the background would be noise."""
    if not is_tracing():
        return []
    from opentelemetry.instrumentation.grpc import aio_client_interceptors  # noqa: PLC0415 - only who traces needs it

    kinds: list[grpc.aio.ClientInterceptor] = aio_client_interceptors(  # type: ignore[no-untyped-call]
        filter_=lambda _: get_current_span().get_span_context().is_valid
    )
    return [one for one in kinds if isinstance(one, grpc.aio.UnaryUnaryClientInterceptor)]


class GrpcChannel:
    """Implements `Channel`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS, interceptors=_interceptors())

    async def unary(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        call = self._channel.unary_unary(
            method.path,
            request_serializer=method.request_type.SerializeToString,
            response_deserializer=method.response_type.FromString,
        )
        try:
            return await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED and method.path.startswith(_NAME_SERVICE):
                raise IllegalArgumentError(_not_a_name_server(self._address)) from error
            raise client_error(self._address, error.code(), error.details()) from error
        except asyncio.CancelledError:
            raise_unless_cancelled(self._address)

    def stream(self, method: Method[RequestT, ResponseT]) -> GrpcStream[RequestT, ResponseT]:
        open_call: grpc.aio.StreamStreamMultiCallable[RequestT, ResponseT] = self._channel.stream_stream(
            method.path,
            request_serializer=method.request_type.SerializeToString,
            response_deserializer=method.response_type.FromString,
        )
        return GrpcStream(self._address, open_call())

    async def close(self) -> None:
        await self._channel.close()


class GrpcStream(Generic[RequestT, ResponseT]):
    """Implements `Stream`."""

    def __init__(self, address: str, call: grpc.aio.StreamStreamCall[RequestT, ResponseT]) -> None:
        self._address = address
        self._call = call

    async def write(self, request: RequestT) -> None:
        try:
            await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            await self._raise(error)

    async def read(self) -> ResponseT | None:
        try:
            answer: Any = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            await self._raise(error)
        return None if answer is grpc.aio.EOF else answer

    async def done_writing(self) -> None:
        try:
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the other side has gone already, which is all that this call wanted to reach

    def cancel(self) -> None:
        self._call.cancel()

    async def _raise(self, error: BaseException) -> NoReturn:
        """Raise the client's error for what the call raised."""
        if isinstance(error, asyncio.CancelledError):
            raise_unless_cancelled(self._address)
        if isinstance(error, grpc.aio.AioRpcError):
            raise client_error(self._address, error.code(), error.details()) from error
        # The call had ended before: its own status says how.
        raise client_error(self._address, await self._call.code(), await self._call.details()) from error


def _not_a_name_server(address: str) -> str:
    return (
        f"{address} is not a name server, but a broker, perhaps: it does not know the name servers' methods; "
        f"mq:// takes the addresses of name servers, which listen on port 9876 unless they are told otherwise"
    )


def raise_unless_cancelled(address: str) -> NoReturn:
    """Sort out a CancelledError: gRPC raises it for a closed channel or call, too, without a cancellation."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise  # noqa: PLE0704 - called from an except block only
    raise ConnectionLostError(f"the call to {address} was given up") from None


def client_error(address: str, status: grpc.StatusCode | None, details: str | None) -> MQClientError:
    """The error of the client's tree for a gRPC status."""
    text = f"{address}: {status.name if status else 'no status'}: {details or 'no details'}"
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimeoutError(text)
    if status in _INVALID_REQUEST_STATUSES:
        return IllegalArgumentError(text)
    if status is grpc.StatusCode.UNAVAILABLE and (details or "").startswith(_NEVER_CONNECTED):
        return BrokerUnreachableError(text)
    return ConnectionLostError(text)


class HttpNameServerSource:
    """Asks `host:port` for `path`. No redirects, no proxy: it is a server of the own network."""

    def __init__(self, server: Address, path: str) -> None:
        self._server = server
        self._path = path

    def __str__(self) -> str:
        return f"http://{self._server}{self._path}"

    async def look_up(self) -> tuple[str, ...]:
        """What the server says now. Raises NoRouteError."""
        connection = HTTPConnection(self._server.host, self._server.port, timeout=HTTP_TIMEOUT_S)
        try:
            body = await _in_thread(partial(self._get, connection), f"mqclient look-up {self}")
            return tuple(str(address) for address in parse_address_list(_first_line(body)))
        except (OSError, HTTPException, ValueError) as error:
            raise NoRouteError(f"{self} did not tell the name servers: {error}") from error
        except asyncio.CancelledError:
            if connection.sock is not None:
                abort(connection.sock)
            raise

    def _get(self, connection: HTTPConnection) -> bytes:
        try:
            connection.request("GET", self._path)
            response = connection.getresponse()
            if response.status != HTTP_OK:
                raise HTTPException(f"it answered {response.status} {response.reason}")
            body = response.read(ANSWER_BYTES_MAX)
            if response.length:  # of what the headers had promised; nothing tells a part of a list from a list
                raise HTTPException(f"its answer lacks {response.length} bytes, or has more than {ANSWER_BYTES_MAX}")
            return body
        finally:
            connection.close()


class DnsNameServerSource:
    """Asks the resolver of this machine for the A records of a name."""

    def __init__(self, name: Address) -> None:
        self._name = name

    def __str__(self) -> str:
        return f"the name {self._name.host}"

    async def look_up(self) -> tuple[str, ...]:
        """One name server for each A record. Raises NoRouteError."""
        try:
            found = await _in_thread(partial(ipv4_addresses, self._name.host), f"mqclient look-up {self}")
        except OSError as error:
            raise NoRouteError(f"{self} has no address: {error}") from error
        return tuple(str(Address(ip, self._name.port)) for ip in found)


def http_source(rest: str) -> HttpNameServerSource:
    """The source of `mq+http://` and `rest`. Raises IllegalArgumentError."""
    try:
        parts = urlsplit(f"http://{rest}")
        host, _, port = parts.netloc.partition(":")
        server = parse_address(f"{host}:{port or HTTP_PORT}")
    except ValueError as error:
        raise IllegalArgumentError(f"mq+http://{rest} is not mq+http://host:port/path: {error}") from error
    query = f"?{parts.query}" if parts.query else ""
    return HttpNameServerSource(server, (parts.path or "/") + query)


def dns_source(rest: str) -> DnsNameServerSource:
    """The source of `mq+dns://` and `rest`. Raises IllegalArgumentError."""
    try:
        return DnsNameServerSource(parse_address(rest))
    except ValueError as error:
        raise IllegalArgumentError(f"mq+dns://{rest} is not mq+dns://name:port: {error}") from error


def _first_line(body: bytes) -> str:
    lines = body.decode(errors="replace").strip().splitlines()
    return lines[0] if lines else ""


async def _in_thread(call: Callable[[], T], name: str) -> T:
    """The result of a call that blocks. A cancelled caller leaves the thread behind, which ends with its call.

    A thread of its own, and a daemon: the loop's pool would keep it, and have the interpreter wait for it at its exit.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    threading.Thread(target=call_for, args=(loop, result, call), name=name, daemon=True).start()
    return await result


def ipv4_addresses(name: str) -> tuple[str, ...]:
    """Every A record of the name, sorted. Blocks. Raises OSError when it has none, or no resolver answers."""
    found = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    return tuple(sorted({str(address[0]) for *_, address in found}))


def abort(connection: socket.socket) -> None:
    """End the connection, so that a thread which waits for it does not wait any longer."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already, which is all that this call wanted to reach

"""Channels by gRPC over TCP. This is the only module of the client that knows gRPC, and makes its errors the client's.

Invariant: BrokerUnreachableError is raised only when no byte of the request can have left; every doubt is an
OutcomeUnknownError.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic, NoReturn

import grpc
from opentelemetry.trace import get_current_span

from mqclient.errors import (
    BrokerUnreachableError,
    ConnectionLostError,
    IllegalArgumentError,
    MQClientError,
    RequestTimeoutError,
)
from mqclient.transport import Method, RequestT, ResponseT, not_a_name_server
from mqproto.grpc_options import CHANNEL_OPTIONS
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
_INVALID_REQUEST_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
}


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
            if error.code() is grpc.StatusCode.UNIMPLEMENTED and method.is_name_servers:
                raise IllegalArgumentError(not_a_name_server(self._address)) from error
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

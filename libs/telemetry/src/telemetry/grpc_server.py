"""Spans of a server's calls, by gRPC and by RocketMQ's frames, for servers whose streams live as long as their clients.

Traced is a call that its caller traces, and that has one request and one answer. A stream of hours is nothing that a
span could tell of, and neither health checks nor calls of callers without a trace are worth a trace of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from telemetry.context import TRACEPARENT, joined_span
from telemetry.providers import is_tracing

if TYPE_CHECKING:
    import grpc
    from google.protobuf.descriptor import ServiceDescriptor


def unary_methods(services: Iterable[ServiceDescriptor]) -> frozenset[str]:
    """The full names, as a call has them, of the methods with one request and one answer."""
    return frozenset(
        f"/{service.full_name}/{method.name}"
        for service in services
        for method in service.methods
        if not (method.client_streaming or method.server_streaming)
    )


def call_interceptors(services: Iterable[ServiceDescriptor]) -> Sequence[grpc.aio.ServerInterceptor]:
    """What a `grpc.aio.server` of these services is made with; nothing while no span goes anywhere."""
    if not is_tracing():
        return ()
    # A process without traces does not load it.
    from opentelemetry.instrumentation.grpc import aio_server_interceptor  # noqa: PLC0415

    methods = unary_methods(services)

    def is_traced(call: Any) -> bool:
        return call.method in methods and any(key == TRACEPARENT for key, _ in call.invocation_metadata or ())

    return (aio_server_interceptor(filter_=is_traced),)  # type: ignore[no-untyped-call]


def frames_call_span(path: str, fields: Mapping[str, str]) -> AbstractContextManager[object]:
    """What a call with one request and one answer runs in that has come by frames: the same span as by gRPC."""
    if TRACEPARENT not in fields or not is_tracing():
        return nullcontext()
    return joined_span(path, fields[TRACEPARENT], kind=SpanKind.SERVER, attributes=frames_call_attributes(path))


def frames_call_attributes(path: str) -> dict[str, str]:
    """Of the spans of one call by frames, at either end."""
    service, _, method = path[1:].partition("/")
    return {"rpc.system": "rocketmq_remoting", "rpc.service": service, "rpc.method": method}

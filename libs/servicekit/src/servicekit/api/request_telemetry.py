"""Spans and metrics of requests, by FastAPI itself; and a trace's id for each request while no spans go anywhere.

Problems, log lines and rows name the trace of a request in any case. To collect a span's attributes that nobody wants
was a tenth of what placing an order took, so that an id is made without them.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from fastapi.telemetry import TelemetryConfig
from opentelemetry.trace import SpanKind
from starlette.types import ASGIApp, Receive, Scope, Send

import telemetry

IsUntraced = Callable[[MutableMapping[str, Any]], bool]

_TRACEPARENT = b"traceparent"


def untraced(paths: Sequence[str]) -> IsUntraced:
    """Whether a scope of ASGI asks for one of these paths."""
    known = frozenset(paths)
    return lambda scope: scope["path"] in known


def request_telemetry(is_untraced: IsUntraced | None = None) -> TelemetryConfig:
    """For an application: spans and metrics as far as this process has any; a span for a request, and none inside."""
    return {
        "tracing": telemetry.is_tracing(),
        "metrics": telemetry.is_measuring(),
        "logs": False,  # a log line says it, with the trace
        "operation_spans": False,
        "auto_configure": False,
        "exclude": is_untraced,
    }


class TraceIds:
    """ASGI middleware: a request runs in its caller's trace, or in a new one, and nothing is recorded of it."""

    def __init__(self, app: ASGIApp, is_untraced: IsUntraced) -> None:
        self._app = app
        self._is_untraced = is_untraced
        self._tracer = telemetry.tracer("servicekit.api")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_untraced(scope):
            await self._app(scope, receive, send)
            return
        caller = next((value.decode("latin-1") for name, value in scope["headers"] if name == _TRACEPARENT), None)
        with self._tracer.start_as_current_span(scope["method"], telemetry.context_of(caller), SpanKind.SERVER):
            await self._app(scope, receive, send)

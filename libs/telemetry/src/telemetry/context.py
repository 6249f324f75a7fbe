"""The trace context on its way through a message: W3C `traceparent` and `tracestate` as message properties."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()


def inject(properties: MutableMapping[str, str]) -> None:
    """Add the current span's context to `properties`; they stay as they are when there is no span."""
    _PROPAGATOR.inject(properties)


def extract(properties: Mapping[str, str]) -> Context:
    """The context that `properties` carry, to start a span in; empty when they carry none or a malformed one."""
    return _PROPAGATOR.extract(properties, context=Context())

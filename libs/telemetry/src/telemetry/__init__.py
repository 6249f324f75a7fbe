"""Telemetry of every process: log lines with service and trace, spans, metrics, and the trace context on its way.

Everything is configured by OpenTelemetry's own environment variables, which `telemetry.settings` reads; with none of
them set, spans have ids and nothing is recorded or sent.
"""

from telemetry import names
from telemetry.context import context_of, extract, inject, joined_span, traceparent
from telemetry.providers import (
    configure,
    current_trace_id,
    is_measuring,
    is_observing,
    is_tracing,
    meter,
    observe,
    shutdown,
    tracer,
)
from telemetry.settings import TelemetryConfigError

__all__ = [
    "TelemetryConfigError",
    "configure",
    "context_of",
    "current_trace_id",
    "extract",
    "inject",
    "is_measuring",
    "is_observing",
    "is_tracing",
    "joined_span",
    "meter",
    "names",
    "observe",
    "shutdown",
    "traceparent",
    "tracer",
]

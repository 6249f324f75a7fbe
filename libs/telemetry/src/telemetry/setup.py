"""Logging, tracing and metrics of one process, set up once at its start."""

from __future__ import annotations

import os

from opentelemetry import trace

from telemetry.providers import PROVIDERS

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def configure(service_name: str, log_level: str = "INFO", *, port: int = 0) -> None:
    """Log as `service_name` from `log_level` on; the first call also sets up traces and metrics.

    A process that listens on `port` keeps its service.instance.id, `host:port`, when it is started again; without a
    port (0) the id is random. OTEL_RESOURCE_ATTRIBUTES names another.

    A second call replaces the logging of the first; the providers of a process never change. Raises ValueError for a
    level that is none of `LOG_LEVELS`, and TelemetryConfigError for one of OpenTelemetry's environment variables.
    """
    if log_level not in LOG_LEVELS:
        raise ValueError(f"the log level {log_level!r} is none of {', '.join(LOG_LEVELS)}")
    from telemetry.logs import configure_logging  # noqa: PLC0415 - structlog is for services, not for all who send

    configure_logging(service_name, log_level)
    PROVIDERS.set_up(service_name, os.environ, port)


def current_trace_id() -> str | None:
    """The trace of the current span as 32 hex digits, or None outside a span."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None

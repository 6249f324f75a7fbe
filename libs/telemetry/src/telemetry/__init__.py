"""Telemetry of every process: log lines with service and trace, spans, and the trace context in message properties."""

from telemetry.context import extract, inject
from telemetry.setup import configure, current_trace_id

__all__ = ["configure", "current_trace_id", "extract", "inject"]

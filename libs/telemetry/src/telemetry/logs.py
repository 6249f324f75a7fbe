"""Log lines of a service: each names the service and, inside a span, the trace and the span.

Both `logging` and `structlog` loggers end in one handler on stderr: JSON lines for machines, coloured text when a
person sits at the other end.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
from opentelemetry import trace
from structlog.typing import EventDict, Processor, WrappedLogger


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stderr` is at the time of the line."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure_logging(service_name: str, log_level: str) -> None:
    """Log as `service_name` from `log_level` on; what an earlier call has set up is replaced."""

    def add_service_and_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service_name
        context = trace.get_current_span().get_span_context()
        event["trace_id"] = trace.format_trace_id(context.trace_id) if context.is_valid else None
        if context.is_valid:
            event["span_id"] = trace.format_span_id(context.span_id)
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        add_service_and_trace,
    ]
    renderers: list[Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if sys.stderr.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a second configure reaches every logger
    )
    handler = _StderrHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _StderrHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(log_level)

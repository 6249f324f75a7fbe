"""A span around an operation: current while it runs, ended with it, and failed when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from types import TracebackType

from opentelemetry import context as current_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

import telemetry
from telemetry import names
from telemetry.context import span_context_of

Attributes = dict[str, AttributeValue]


@cache
def client_tracer() -> Tracer:
    """The tracer of this package."""
    return telemetry.tracer("mqclient")


@lru_cache(maxsize=4_096)
def operation_attributes(operation: str, kind: str, destination: str) -> Mapping[str, AttributeValue]:
    """What every span of an operation has; `kind` is one of the conventions' operation types, or empty."""
    attributes = {
        names.SYSTEM: names.SYSTEM_VALUE,
        names.OPERATION_NAME: operation,
        names.DESTINATION_NAME: destination,
    }
    return {**attributes, names.OPERATION_TYPE: kind} if kind else attributes


class OperationSpan:
    """`with OperationSpan(...) as span`; without `parent` it is a child of the current span."""

    __slots__ = ("_span", "_token")

    def __init__(
        self,
        operation: str,
        operation_type: str,
        destination: str,
        kind: SpanKind,
        *,
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> None:
        self._span = client_tracer().start_span(
            names.span_name(operation, destination),
            parent,
            kind,
            operation_attributes(operation, operation_type, destination),
            links,
        )

    def __enter__(self) -> Span:
        self._token = current_context.attach(trace.set_span_in_context(self._span))
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        current_context.detach(self._token)
        if error is not None:
            failed(self._span, error)
        self._span.end()


def failed(span: Span, error: BaseException) -> None:
    """The span's operation has raised this."""
    if span.is_recording():
        span.record_exception(error)
        refused(span, error_type(error), str(error))


def refused(span: Span, kind: str, sentence: str) -> None:
    """The span's operation has come to nothing."""
    span.set_attribute(names.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, sentence))


def error_type(error: BaseException) -> str:
    """The value of `error.type`."""
    return "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__qualname__


def inside(span: SpanContext) -> Context:
    """A context in which this span, which may have ended, is the current one."""
    return trace.set_span_in_context(trace.NonRecordingSpan(span))


def links_to(contexts: Sequence[Context]) -> list[Link]:
    """Links with the spans of those that have one, in their order, each once."""
    spans = [span_context_of(context) for context in contexts]
    return list({(span.trace_id, span.span_id): Link(span) for span in spans if span.is_valid}.values())

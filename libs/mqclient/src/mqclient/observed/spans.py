"""Spans around operations, and what clients measure, after OpenTelemetry's conventions for messaging.

A span is current while its operation runs, ended with it, and failed when it fails.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from types import TracebackType

from opentelemetry import context as current_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

import telemetry
from telemetry import names
from telemetry.context import span_context_of

Attributes = dict[str, AttributeValue]

# Upper bounds of the classes in seconds: those of the conventions, and smaller ones, because a broker is often nearer.
DURATION_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

# What one series is of: operation and its type, topic, consumer group or "", error.type or "".
Series = tuple[str, str, str, str, str]


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
        rejected(span, error_type(error), str(error))


def rejected(span: Span, kind: str, sentence: str) -> None:
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


class ClientMetrics:
    """The instruments under one meter."""

    def __init__(self, meter: Meter) -> None:
        self._operations = meter.create_histogram(
            names.CLIENT_OPERATION_DURATION,
            "s",
            "Duration of messaging operation initiated by a producer or consumer client",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S,
        )
        self._sent = _Totals(
            meter, names.CLIENT_SENT_MESSAGES, "{message}", "Messages that producers attempted to send"
        )
        self._consumed = _Totals(
            meter, names.CLIENT_CONSUMED_MESSAGES, "{message}", "Messages that were delivered to the application"
        )
        self._processing = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "Duration of processing operation",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S,
        )

    def sent(self, topic: str, messages: int, seconds: float, error: BaseException | None) -> None:
        """One call of a producer has ended."""
        series = ("send", names.OPERATION_SEND, topic, "", "" if error is None else error_type(error))
        self._sent.add(series, messages)
        self._operations.record(seconds, _attributes(series))

    def received(self, topic: str, group: str, messages: int, seconds: float) -> None:
        """A pull has found messages."""
        series = ("receive", names.OPERATION_RECEIVE, topic, group, "")
        self._consumed.add(series, messages)
        self._operations.record(seconds, _attributes(series))

    def processed(self, topic: str, group: str, messages: int, seconds: float, failure: str) -> None:
        """One call of a listener has ended; `failure` is its error.type, or empty."""
        series = ("process", names.OPERATION_PROCESS, topic, group, failure)
        self._consumed.add(series, messages)
        self._processing.record(seconds, _attributes(series))


class _Totals:
    """A counter that is read at each collection: adding to it costs a twentieth of OpenTelemetry's own."""

    def __init__(self, meter: Meter, name: str, unit: str, description: str) -> None:
        self._lock = threading.Lock()
        self._totals: dict[Series, int] = {}
        meter.create_observable_counter(name, [self._observe], unit, description)

    def add(self, series: Series, count: int) -> None:
        with self._lock:
            self._totals[series] = self._totals.get(series, 0) + count

    def _observe(self, _: CallbackOptions) -> list[Observation]:
        with self._lock:
            return [Observation(total, _attributes(series)) for series, total in self._totals.items()]


@cache
def client_metrics() -> ClientMetrics:
    """Those of this process."""
    return ClientMetrics(telemetry.meter("mqclient"))


@lru_cache(maxsize=4_096)
def _attributes(series: Series) -> dict[str, str]:
    """As the conventions name them; read-only."""
    operation, kind, topic, group, error = series
    attributes = {
        names.SYSTEM: names.SYSTEM_VALUE,
        names.OPERATION_NAME: operation,
        names.OPERATION_TYPE: kind,
        names.DESTINATION_NAME: topic,
    }
    if group:
        attributes[names.CONSUMER_GROUP_NAME] = group
    if error:
        attributes[names.ERROR_TYPE] = error
    return attributes

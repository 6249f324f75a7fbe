"""The trace context on its way: W3C `traceparent` and `tracestate` in message properties, `traceparent` in a row.

What waits longer than a request lives on keeps its `traceparent`: an order that is cancelled tomorrow, a payment that
its gateway confirms in an hour. `joined_span` takes such work back into the trace that it belongs to.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from opentelemetry import context as current_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

_PROPAGATOR = TraceContextTextMapPropagator()

P = ParamSpec("P")
T = TypeVar("T")


def inject(properties: MutableMapping[str, str]) -> None:
    """Add the current span's context to `properties`; they stay as they are when there is no span."""
    _PROPAGATOR.inject(properties)


def extract(properties: Mapping[str, str]) -> Context:
    """The context that `properties` carry, to start a span in; empty when they carry none or a malformed one."""
    return _PROPAGATOR.extract(properties, context=Context())


def carried(span: SpanContext) -> dict[str, str]:
    """What `inject` adds while this span is the current one; nothing for one that is not valid."""
    if not span.is_valid:
        return {}
    carrier = {TRACEPARENT: f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"}
    if span.trace_state:
        carrier[TRACESTATE] = span.trace_state.to_header()
    return carrier


def traceparent() -> str | None:
    """The current span's context as a W3C header value of 55 characters, or None outside a span."""
    return carried(trace.get_current_span().get_span_context()).get(TRACEPARENT)


def context_of(traceparent: str | None) -> Context:
    """The context that a header value stands for, to start a span in; empty for None and for a malformed one."""
    return extract({} if traceparent is None else {TRACEPARENT: traceparent})


def span_context_of(context: Context) -> SpanContext:
    """Trace and span that `context` names; not valid when it names none."""
    return trace.get_current_span(context).get_span_context()


@contextmanager
def joined_span(
    name: str,
    traceparent: str | None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Mapping[str, AttributeValue] | None = None,
) -> Iterator[Span]:
    """A current span in the trace of `traceparent`, for as long as the block runs; an exception is noted on it.

    When the current span is of that trace already, or `traceparent` is None or malformed, it is a child of the current
    span. Else it is a child of `traceparent`, and linked with the current span.
    """
    joined = span_context_of(context_of(traceparent))
    current = trace.get_current_span().get_span_context()
    parent, links = None, []
    if joined.is_valid and joined.trace_id != current.trace_id:
        parent = trace.set_span_in_context(trace.NonRecordingSpan(joined))
        links = [Link(current)] if current.is_valid else []
    tracer = trace.get_tracer(__name__)
    with tracer.start_as_current_span(name, parent, kind, attributes, links) as span:
        yield span


def outside_spans() -> contextvars.Context | None:
    """The current context without its span, for work that outlives what has begun it; None when there is no span."""
    if not trace.get_current_span().get_span_context().is_valid:
        return None
    context = contextvars.copy_context()
    context.run(current_context.attach, trace.set_span_in_context(trace.INVALID_SPAN))
    return context


def in_this_span(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, to be called in another thread with the span that is current now."""
    if not trace.get_current_span().get_span_context().is_valid:
        return function
    here = current_context.get_current()

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        token = current_context.attach(here)
        try:
            return function(*args, **kwargs)
        finally:
            current_context.detach(token)

    return call

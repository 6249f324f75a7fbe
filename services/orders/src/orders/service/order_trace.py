"""The trace of an order: whatever happens to it belongs to the trace in which it was placed, whoever asks for it.

A request to change an order has a trace of its own, its caller's. What the request does to the order is a span in the
order's trace, linked with the request's; so the messages that tell of the change are in the order's trace too, and with
them everything that consumers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace

import telemetry
from orders.domain.order import Order


def trace_id_of(order: Order) -> str | None:
    """The order's trace as 32 hex digits."""
    return None if order.traceparent is None else order.traceparent.split("-")[1]


def say_which(order: Order) -> None:
    """Put the order's id on the current span, so that its trace is found by it."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attribute(telemetry.names.ORDER_ID, order.order_id)


@contextmanager
def in_trace_of(order: Order, what: str) -> Iterator[None]:
    """What is done inside is the span `what` in the order's trace; of an order without one, in the current trace."""
    with telemetry.joined_span(what, order.traceparent, attributes={telemetry.names.ORDER_ID: order.order_id}):
        yield

"""Who may see an order, and what metrics and traces say of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from opentelemetry import trace

import telemetry
from orders.domain.errors import UnknownOrderError, VersionMismatchError
from orders.domain.order import Order, Origin, StatusChange
from orders.service.unit_of_work import Orders
from osenv import Clock
from servicekit.auth import ORDERS_ALL, Caller

# ----------------------------------------------------------------------------------------------------------------------
# Which orders a caller may see and change, and in which version.
#
# Invariant: an order that the caller may not see is answered like one that does not exist, so that nobody learns of it.


async def find_visible(orders: Orders, order_id: str, caller: Caller) -> Order:
    """The order, for its buyer and for whoever may see all orders. Raises UnknownOrderError."""
    order = await orders.get(order_id)
    if order.buyer_id != caller.subject and not caller.has(ORDERS_ALL):
        raise UnknownOrderError(order_id)
    return order


def require_buyer(order: Order, caller: Caller) -> None:
    """Raises UnknownOrderError unless the caller is the order's buyer: what is the buyer's to do, nobody else does."""
    if order.buyer_id != caller.subject:
        raise UnknownOrderError(order.order_id)


def require_version(order: Order, version: int | None) -> None:
    """Raises VersionMismatchError when a version is asked for and the order is in another."""
    if version is not None and order.version != version:
        raise VersionMismatchError(order.order_id, version)


def origin_of(actor: str, clock: Clock, order: Order | None = None) -> Origin:
    """A change by `actor`, now, in the trace of `order`; of an order without one, in the trace that is going on."""
    trace_id = None if order is None else trace_id_of(order)
    return Origin(actor, clock.wall_ms(), trace_id or telemetry.current_trace_id())


# ----------------------------------------------------------------------------------------------------------------------
# The trace of an order: whatever happens to it belongs to the trace in which it was placed, whoever asks for it.
#
# A request to change an order has a trace of its own, its caller's. What the request does to the order is a span in the
# order's trace, linked with the request's; so the messages that tell of the change are in the order's trace too, and
# with them everything that consumers do.


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


# ----------------------------------------------------------------------------------------------------------------------
# The port to whoever counts what happens to orders; the database, and not a counter, is what decides anything.


class OrderMeter(Protocol):
    """Told once for each change that this process has made, after it was committed."""

    def changed(self, order: Order, change: StatusChange) -> None:
        """`order` is as it is after the change."""


class NotMetered:
    """Implements `OrderMeter`: nobody counts."""

    def changed(self, order: Order, change: StatusChange) -> None:
        """Forget it."""


NOT_METERED = NotMetered()

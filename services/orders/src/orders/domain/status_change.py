"""One change of an order's status, and where it came from: the rows of an order's history."""

from __future__ import annotations

from dataclasses import dataclass

from orders.domain.order_status import ChangeReason, OrderStatus


@dataclass(frozen=True, slots=True)
class Origin:
    """Who makes a change, at which wall-clock millisecond, and in which trace.

    `actor` is the caller's subject, or the consumer group that acts by itself. `trace_id` is None outside a trace.
    """

    actor: str
    at_ms: int
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class StatusChange:
    """One row of an order's history; `old_status` is None for the first."""

    order_id: str
    old_status: OrderStatus | None
    new_status: OrderStatus
    reason: ChangeReason
    at_ms: int
    actor: str
    trace_id: str | None

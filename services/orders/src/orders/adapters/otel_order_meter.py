"""What happens to orders, as OpenTelemetry metrics."""

from __future__ import annotations

import telemetry
from orders.domain.order import ChangeReason, Order, OrderStatus, StatusChange
from orders.service.queries import Queries
from osenv import Clock
from servicekit.background import StoredGauge

REASON = "hourglass.order.close.reason"
STATUS = "hourglass.order.status"

# A timer is late by milliseconds; by seconds when something was down meanwhile.
LATENESS_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def orders_by_status(queries: Queries, clock: Clock) -> StoredGauge:
    """The gauge of all orders in the database, by status; every process of orders tells the same."""
    return StoredGauge(
        "hourglass.orders.by_status",
        queries.orders_by_status,
        clock,
        unit="{order}",
        description="orders in the database, by status",
        attribute=STATUS,
    )


class OtelOrderMeter:
    """Implements `OrderMeter`."""

    def __init__(self) -> None:
        meter = telemetry.meter("orders")
        self._placed = meter.create_counter(
            "hourglass.orders.placed", unit="{order}", description="orders that were placed"
        )
        self._paid = meter.create_counter("hourglass.orders.paid", unit="{order}", description="orders that were paid")
        self._closed = meter.create_counter(
            "hourglass.orders.closed", unit="{order}", description="orders that were closed, by reason"
        )
        self._lateness = meter.create_histogram(
            "hourglass.orders.close.lateness",
            unit="s",
            description="from the end of the time to pay to the closing, of orders that expired",
            explicit_bucket_boundaries_advisory=LATENESS_BOUNDS_S,
        )

    def changed(self, order: Order, change: StatusChange) -> None:
        if change.reason is ChangeReason.PLACED:
            self._placed.add(1)
        elif change.reason is ChangeReason.PAID:
            self._paid.add(1)
        elif change.new_status is OrderStatus.CLOSED:
            self._closed.add(1, {REASON: change.reason.value})
            if change.reason is ChangeReason.EXPIRED:
                self._lateness.record((change.at_ms - order.expires_at_ms) / 1000)

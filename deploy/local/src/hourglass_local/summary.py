"""What a demonstration came to, and whether that is as it has to be."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from hourglass_local.cluster import StopReport
from hourglass_local.process import MIB, ManagedProcess
from hourglass_local.shop import Order, Product

PENDING, CLOSED = "PENDING_PAYMENT", "CLOSED"


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long after their expiry orders were closed, in milliseconds; zero when none was."""

    p50: int
    p99: int
    max: int

    @classmethod
    def of(cls, orders: Iterable[Order]) -> Lateness:
        values = sorted(order.closed_at_ms - order.expires_at_ms for order in orders if order.closed_at_ms is not None)
        return cls(percentile(values, 50), percentile(values, 99), percentile(values, 100))


def percentile(ascending: Sequence[int], percent: int) -> int:
    """The smallest value that `percent` of all do not exceed (nearest rank); 0 of nothing."""
    return ascending[max(0, math.ceil(len(ascending) * percent / 100) - 1)] if ascending else 0


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One process over its whole life."""

    rss_peak_mib: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Shopped:
    """What the shop says when nothing moves any more."""

    orders_wanted: int
    orders: Mapping[str, Order]
    products_before: Mapping[str, Product]
    products_after: Mapping[str, Product]
    messages_stored: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The content of summary.json. `stock_before` and `stock_after` are the units on sale."""

    orders_placed: int
    closed: int
    pending: int
    closed_early: int
    stock_before: int
    stock_after: int
    stock_conserved: bool
    close_lateness_ms: Lateness
    messages_stored: int
    processes: dict[str, ProcessUsage]
    leftover_processes: int
    killed_processes: int
    duration_s: float

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def summarize(shopped: Shopped, processes: Sequence[ManagedProcess], stopped: StopReport, duration_s: float) -> Summary:
    """Put everything together, once the processes have ended."""
    orders = shopped.orders.values()
    closed = [order for order in orders if order.status == CLOSED]
    return Summary(
        orders_placed=len(orders),
        closed=len(closed),
        pending=sum(order.status == PENDING for order in orders),
        closed_early=sum(
            order.closed_at_ms is not None and order.closed_at_ms < order.expires_at_ms for order in orders
        ),
        stock_before=_available(shopped.products_before),
        stock_after=_available(shopped.products_after),
        # Product by product: sums can agree by accident. Nothing is sold, so every unit has to be on sale again.
        stock_conserved=shopped.products_before == shopped.products_after,
        close_lateness_ms=Lateness.of(closed),
        messages_stored=shopped.messages_stored,
        processes={process.name: _usage(process) for process in processes},
        leftover_processes=len(stopped.leftover),
        killed_processes=len(stopped.killed),
        duration_s=round(duration_s, 1),
    )


def problems(summary: Summary, shopped: Shopped, stopped: StopReport) -> list[str]:
    """Everything that is not as it has to be, as sentences; empty after a good run."""
    found = []
    if summary.orders_placed != shopped.orders_wanted:
        found.append(f"{shopped.orders_wanted} orders were wanted and the shop has {summary.orders_placed}")
    if summary.pending:
        found.append(f"{summary.pending} of {summary.orders_placed} orders are still pending long after their expiry")
    elif summary.closed != summary.orders_placed:
        found.append(f"only {summary.closed} of {summary.orders_placed} orders are closed, although nobody paid")
    if summary.closed_early:
        found.append(f"{summary.closed_early} orders were closed before their expiry")
    if not summary.stock_conserved:
        found.append(
            f"the stock does not add up: {summary.stock_before} units on sale before, {summary.stock_after} after"
        )
    if stopped.killed:
        found.append(f"had to be killed to stop: {', '.join(stopped.killed)}")
    found += stopped.failed
    if stopped.leftover:
        found.append(f"processes are left behind: {', '.join(map(str, stopped.leftover))}")
    return found


def _available(products: Mapping[str, Product]) -> int:
    return sum(product.available for product in products.values())


def _usage(process: ManagedProcess) -> ProcessUsage:
    usage = process.usage
    return ProcessUsage(round(usage.rss_peak_bytes / MIB, 1), round(usage.cpu_seconds, 2))

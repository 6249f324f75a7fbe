"""What one run cost, in numbers that have nothing to do with the machine: its clock is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from order_timers.order_book import Order, OrderBook, Status


@dataclass(frozen=True, slots=True)
class Outcome:
    """One design in one scenario."""

    design: str
    scenario: str
    orders: int
    refused: int  # no instance was there to take them, or their timer could not be set
    paid: int
    closed: int
    stuck: int  # pending after their time at the end of the run, each with its unit of stock
    late_p50_s: float
    late_max_s: float
    withheld_minutes: float  # unit-minutes from expiry to closing, in which nobody could buy what nobody paid
    scans: int
    idle_scans: int
    looks: int
    wasted_looks: int
    loaded: int
    closings_in_vain: int
    repaired_by_hand: int  # stuck orders that closed after a person gave them to another server


def measure(
    book: OrderBook, *, design: str, scenario: str, refused: int, now_ms: int, repaired_by_hand: int
) -> Outcome:
    """The book as it stands at `now_ms`."""
    closed = [order for order in book.orders if order.status is Status.CLOSED]
    stuck = stuck_orders(book, now_ms)
    lateness_ms = sorted(order.ended_at_ms - order.expires_at_ms for order in closed)
    withheld_ms = sum(lateness_ms) + sum(now_ms - order.expires_at_ms for order in stuck)
    counts = book.counts
    return Outcome(
        design=design,
        scenario=scenario,
        orders=len(book.orders),
        refused=refused,
        paid=sum(order.status is Status.PAID for order in book.orders),
        closed=len(closed),
        stuck=len(stuck),
        late_p50_s=_middle(lateness_ms) / 1000,
        late_max_s=max(lateness_ms, default=0) / 1000,
        withheld_minutes=round(withheld_ms / 60_000, 1),
        scans=counts.scans,
        idle_scans=counts.idle_scans,
        looks=counts.looks,
        wasted_looks=counts.wasted_looks,
        loaded=counts.loaded,
        closings_in_vain=counts.closings_in_vain,
        repaired_by_hand=repaired_by_hand,
    )


def stuck_orders(book: OrderBook, now_ms: int) -> list[Order]:
    """Pending orders whose time is over."""
    return [order for order in book.orders if order.is_pending and order.expires_at_ms <= now_ms]


def _middle(sorted_values: Sequence[int]) -> int:
    return sorted_values[len(sorted_values) // 2] if sorted_values else 0

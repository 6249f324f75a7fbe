"""The shop's database, which outlives every process and counts what it is asked; and what a run on it cost.

Invariants: an order leaves PENDING once, by compare-and-set; a later attempt changes nothing. Every statement takes
DATABASE_MS of simulated time, so that two instances can be at work at the same moment. The figures of an outcome have
nothing to do with the machine: the clock is simulated.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from osenv import Clock

DATABASE_MS = 5


class Status(enum.StrEnum):
    """Where an order stands, as far as timers care."""

    PENDING = "PENDING"
    PAID = "PAID"
    CLOSED = "CLOSED"


@dataclass(slots=True)
class Order:
    """A row; `server_id` is the instance that took the order (mechanism X6)."""

    order_id: str
    server_id: str
    expires_at_ms: int
    status: Status = Status.PENDING
    ended_at_ms: int = 0
    looks: int = 0  # how many scans have read this order

    @property
    def is_pending(self) -> bool:
        return self.status is Status.PENDING


@dataclass(slots=True)
class Counts:
    """What the database was asked by timers."""

    scans: int = 0
    idle_scans: int = 0  # found nothing to close
    looks: int = 0  # rows that scans read
    wasted_looks: int = 0  # of orders that were not due
    loaded: int = 0  # rows that were read into the memory of an instance that started
    closings_in_vain: int = 0  # another server was faster


class OrderBook:
    """All orders."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._orders: dict[str, Order] = {}
        self.counts = Counts()

    @property
    def orders(self) -> list[Order]:
        """For measurements; reading it costs nothing."""
        return list(self._orders.values())

    async def add(self, order: Order) -> None:
        await self._take_time()
        self._orders[order.order_id] = order

    async def find(self, order_id: str) -> Order | None:
        await self._take_time()
        return self._orders.get(order_id)

    async def pay(self, order_id: str) -> bool:
        """False if the order is closed already."""
        return await self._end(order_id, Status.PAID)

    async def close(self, order_id: str) -> bool:
        """False, and nothing changed, if the order is not pending any more, or not there."""
        is_closed = await self._end(order_id, Status.CLOSED)
        self.counts.closings_in_vain += not is_closed
        return is_closed

    async def scan(self, server_id: str | None = None) -> list[Order]:
        """The orders that are due; every pending one is looked at, of one server or of all."""
        await self._take_time()
        now_ms = self._clock.wall_ms()
        looked_at = list(self._pending(server_id))
        due = [order for order in looked_at if order.expires_at_ms <= now_ms]
        for order in looked_at:
            order.looks += 1
        self.counts.scans += 1
        self.counts.idle_scans += not due
        self.counts.looks += len(looked_at)
        self.counts.wasted_looks += len(looked_at) - len(due)
        return due

    async def load_pending(self, server_id: str | None = None) -> list[Order]:
        """What an instance reads when it starts: the pending orders, of one server or of all."""
        await self._take_time()
        found = list(self._pending(server_id))
        self.counts.loaded += len(found)
        return found

    async def reassign(self, from_server_id: str, to_server_id: str) -> int:
        """The repair by hand of mechanism X6: UPDATE orders SET server_id = ... ; returns how many rows it changed."""
        await self._take_time()
        found = list(self._pending(from_server_id))
        for order in found:
            order.server_id = to_server_id
        return len(found)

    def _pending(self, server_id: str | None) -> Iterator[Order]:
        for order in self._orders.values():
            if order.is_pending and server_id in (None, order.server_id):
                yield order

    async def _end(self, order_id: str, status: Status) -> bool:
        await self._take_time()
        order = self._orders.get(order_id)
        if order is None or not order.is_pending:
            return False
        order.status, order.ended_at_ms = status, self._clock.wall_ms()
        return True

    async def _take_time(self) -> None:
        await self._clock.sleep(DATABASE_MS / 1000)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One design in one scenario."""

    design: str
    scenario: str
    orders: int
    rejected: int  # no instance was there to take them, or their timer could not be set
    paid: int
    closed: int
    stuck: int  # pending after their time at the end of the run, each with its unit of stock
    late_p50_s: float
    late_max_s: float
    withheld_minutes: float  # unit-minutes from expiry to closing, in which unpaid units could not be sold
    scans: int
    idle_scans: int
    looks: int
    wasted_looks: int
    loaded: int
    closings_in_vain: int
    repaired_by_hand: int  # stuck orders that closed after a person gave them to another server


def measure(
    book: OrderBook, *, design: str, scenario: str, rejected: int, now_ms: int, repaired_by_hand: int
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
        rejected=rejected,
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

"""The two examples with which the course argues against polling, played (MISSION X4)."""

from __future__ import annotations

from dataclasses import dataclass

from order_timers.database_poller import DatabasePoller
from order_timers.designs import DESIGNS, POLLER, Design
from order_timers.scenarios import CALM
from order_timers.simulation import simulate
from order_timers.workload import PlannedOrder, Workload

FORTY_FIVE_MINUTES = 45
SEAT_WINDOW_MINUTES = 30
NEXT_BUYER_AFTER_S = 20  # the order expires at 12:00:35, the next buyer asks at 12:00:55

# The course's poller has scanned at 12:00:30 and scans again at 12:01:30.
POLLER_AT_30 = Design("poller, 60 s at :30", lambda it, _: DatabasePoller(it.book, it.clock, phase_s=30))


@dataclass(frozen=True, slots=True)
class Scanned:
    """How often a poller that scans every minute reads an order until it can close it."""

    minutes: int
    looks: int
    wasted_looks: int


@dataclass(frozen=True, slots=True)
class LastSeat:
    """What becomes of the last seat, whose order expires at 12:00:35 unpaid."""

    design: str
    closed_after_s: float
    next_buyer_gets_it: bool


async def forty_five_minutes() -> Scanned:
    """An order that may be paid for 45 minutes, and a scan every minute."""
    order = PlannedOrder("order-0", 0, None)
    outcome = await simulate(POLLER, CALM, Workload(minutes=1, window_minutes=FORTY_FIVE_MINUTES, fixed=(order,)))
    return Scanned(FORTY_FIVE_MINUTES, outcome.looks, outcome.wasted_looks)


async def last_seat(design: Design) -> LastSeat:
    """An order of 12:00:35 minus its window; somebody else wants the seat at 12:00:55."""
    order = PlannedOrder("order-0", 35_000, None)
    outcome = await simulate(design, CALM, Workload(minutes=1, window_minutes=SEAT_WINDOW_MINUTES, fixed=(order,)))
    return LastSeat(design.name, outcome.late_max_s, outcome.closed == 1 and outcome.late_max_s <= NEXT_BUYER_AFTER_S)


SEAT_DESIGNS = (POLLER_AT_30, *(design for design in DESIGNS if design is not POLLER))

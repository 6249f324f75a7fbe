"""Every design in every scenario over the same buyers, the course's two examples against polling, and tables of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from order_timers.designs import DESIGNS, POLLER, DatabasePoller, Design
from order_timers.order_book import Outcome
from order_timers.scenarios import (
    CALM,
    MINUTES_A_YEAR,
    SCENARIOS,
    PlannedOrder,
    Workload,
    in_parallel,
    in_series,
    outage_minutes,
)
from order_timers.simulation import simulate

FORTY_FIVE_MINUTES = 45
SEAT_WINDOW_MINUTES = 30
NEXT_BUYER_AFTER_S = 20  # the order expires at 12:00:35, the next buyer asks at 12:00:55
SHARES = (0.999, 0.9999, 0.99999)
PARTS = 3  # the shop, its database, its queue
WEAK = 0.99

COLUMNS = (
    "design",
    "closed",
    "stuck",
    "by hand",
    "late p50",
    "late max",
    "withheld",
    "scans",
    "rows in vain",
    "loaded",
    "clashes",
)
LEGEND = """\
stuck: unpaid, expired, and never closed; by hand: of these, closed after a person had given them to another server;
late p50 and max: seconds from expiry to closing; withheld: minutes in which a unit could not be sold although its order
had expired, all units together; scans, rows in vain: what the database was asked for, and rows that were not due;
loaded: rows read into memory at a start; clashes: closings that found their order closed by another instance."""

# The course's poller has scanned at 12:00:30 and scans again at 12:01:30.
POLLER_AT_30 = Design("poller, 60 s at :30", lambda it, _: DatabasePoller(it.book, it.clock, phase_s=30))

SEAT_DESIGNS = (POLLER_AT_30, *(design for design in DESIGNS if design is not POLLER))


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that the command tells."""

    workload: Workload
    scanned: Scanned
    seats: Sequence[LastSeat]
    outcomes: Sequence[Outcome]

    def of(self, scenario: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.scenario == scenario]

    def document(self) -> dict[str, Any]:
        """For JSON; times and counts are simulated and the same on every machine."""
        workload = asdict(self.workload)
        del workload["fixed"]
        return {
            "workload": workload,
            "scenarios": {scenario.name: scenario.sentence for scenario in SCENARIOS},
            "forty_five_minutes": asdict(self.scanned),
            "last_seat": [asdict(seat) for seat in self.seats],
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "availability": availability_document(),
        }


async def compare(workload: Workload, tell: Callable[[str], None]) -> Comparison:
    """Play everything, one run after the other; `tell` hears which one begins."""
    tell("the examples of the course")
    scanned = await forty_five_minutes()
    seats = [await last_seat(design) for design in SEAT_DESIGNS]
    outcomes = []
    for scenario in SCENARIOS:
        for design in DESIGNS:
            if design.needs_queue or not scenario.needs_queue:
                tell(f"{scenario.name}: {design.name}")
                outcomes.append(await simulate(design, scenario, workload))
    return Comparison(workload, scanned, seats, outcomes)


async def forty_five_minutes() -> Scanned:
    """An order that may be paid for 45 minutes, and a scan every minute."""
    order = PlannedOrder("order-0", 0, None)
    outcome = await simulate(POLLER, CALM, Workload(minutes=1, window_minutes=FORTY_FIVE_MINUTES, fixed=(order,)))
    return Scanned(FORTY_FIVE_MINUTES, outcome.looks, outcome.wasted_looks)


async def last_seat(design: Design) -> LastSeat:
    """An order of 12:00:35 minus its window; another buyer wants the seat at 12:00:55."""
    order = PlannedOrder("order-0", 35_000, None)
    outcome = await simulate(design, CALM, Workload(minutes=1, window_minutes=SEAT_WINDOW_MINUTES, fixed=(order,)))
    return LastSeat(design.name, outcome.late_max_s, outcome.closed == 1 and outcome.late_max_s <= NEXT_BUYER_AFTER_S)


def availability_document() -> dict[str, Any]:
    """The arithmetic of mechanism X7; minutes are those of a year."""
    series = in_series(*[0.9999] * PARTS)
    parallel = in_parallel(WEAK, WEAK)
    return {
        "minutes_a_year": MINUTES_A_YEAR,
        "outage_minutes": {f"{share:.3%}": round(outage_minutes(share), 1) for share in SHARES},
        "three_parts_of_99.99_in_series": {"availability": series, "outage_minutes": round(outage_minutes(series), 1)},
        "two_instances_of_99_in_parallel": {
            "availability": parallel,
            "outage_minutes_of_each": round(outage_minutes(WEAK), 1),
            "outage_minutes": round(outage_minutes(parallel), 1),
        },
    }


def show(comparison: Comparison, console: Console) -> None:
    """The course's examples, a table for each scenario, and the arithmetic of a year."""
    workload, scanned = comparison.workload, comparison.scanned
    console.print(
        f"An order of {scanned.minutes} minutes, a scan every minute: read {scanned.looks} times,"
        f" {scanned.wasted_looks} of them in vain."
    )
    console.print(
        f"The last seat, unpaid, expires at 12:00:35; the next buyer asks {NEXT_BUYER_AFTER_S} s later, at 12:00:55:"
    )
    _show_seats(comparison.seats, console)
    console.print(
        f"{workload.orders} orders in {workload.minutes} minutes, {workload.window_minutes} minutes to pay, about half"
        f" of them paid; seed {workload.seed}."
    )
    console.print(LEGEND)
    for scenario in SCENARIOS:
        outcomes = comparison.of(scenario.name)
        rejected = max(outcome.rejected for outcome in outcomes)
        console.print(f"\n[bold]{scenario.name}[/]: {scenario.sentence}")
        if rejected:
            console.print(f"{rejected} buyers found no server to take their order, and are not counted")
        _show_outcomes(outcomes, console)
    console.print()
    for line in availability_lines(comparison):
        console.print(line)


def availability_lines(comparison: Comparison) -> list[str]:
    """Mechanism X7 in sentences, with the numbers of the scenarios `a-year` and `a-year-of-two`."""
    shares = ", ".join(f"{share * 100:g} % is {outage_minutes(share):.1f} minutes" for share in SHARES)
    series, parallel = in_series(*[0.9999] * PARTS), in_parallel(WEAK, WEAK)
    lines = [
        f"Of a year {shares} of outage.",
        f"{PARTS} parts that are all needed, of 99.99 % each, are {series * 100:.2f} % together:"
        f" {outage_minutes(series):.1f} minutes.",
        f"Two instances of {WEAK * 100:g} %, {outage_minutes(WEAK):,.0f} minutes each, that stand in for each other are"
        f" {parallel * 100:g} %: {outage_minutes(parallel):.1f} minutes.",
        "That holds where each can close the orders of the other. A year's outage of one of two costs:",
    ]
    lines += [
        f"  {outcome.design}: {outcome.withheld_minutes:,.1f} unit-minutes withheld, {outcome.stuck} orders stuck"
        for outcome in comparison.of("a-year-of-two")
    ]
    return lines


def _show_seats(seats: Sequence[LastSeat], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("design", "closed after, s", "the next buyer"):
        table.add_column(column, justify="right" if column == "closed after, s" else "left")
    for seat in seats:
        answer = "gets the seat" if seat.next_buyer_gets_it else "is turned away"
        table.add_row(seat.design, f"{seat.closed_after_s:.2f}", answer)
    console.print(table)


def _show_outcomes(outcomes: Sequence[Outcome], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "design" else "right", no_wrap=True)
    for one in outcomes:
        table.add_row(
            one.design,
            str(one.closed),
            str(one.stuck),
            str(one.repaired_by_hand),
            f"{one.late_p50_s:,.2f}",
            f"{one.late_max_s:,.2f}",
            f"{one.withheld_minutes:,.1f}",
            f"{one.scans:,}",
            f"{one.wasted_looks:,}",
            str(one.loaded),
            str(one.closings_in_vain),
        )
    console.print(table)

"""The comparison as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from order_timers.availability import in_parallel, in_series, outage_minutes
from order_timers.comparison import PARTS, SHARES, WEAK, Comparison
from order_timers.outcome import Outcome
from order_timers.scenarios import SCENARIOS
from order_timers.stories import NEXT_BUYER_AFTER_S, LastSeat

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
        refused = max(outcome.refused for outcome in outcomes)
        console.print(f"\n[bold]{scenario.name}[/]: {scenario.sentence}")
        if refused:
            console.print(f"{refused} buyers found nobody to take their order, and are not counted")
        _show_outcomes(outcomes, console)
    console.print()
    for line in availability_lines(comparison):
        console.print(line)


def availability_lines(comparison: Comparison) -> list[str]:
    """MISSION X7 in sentences, with the numbers of the scenarios `a-year` and `a-year-of-two`."""
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

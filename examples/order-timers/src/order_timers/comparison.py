"""Every design in every scenario, over the same buyers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from order_timers.availability import MINUTES_A_YEAR, in_parallel, in_series, outage_minutes
from order_timers.designs import DESIGNS
from order_timers.outcome import Outcome
from order_timers.scenarios import SCENARIOS
from order_timers.simulation import simulate
from order_timers.stories import SEAT_DESIGNS, LastSeat, Scanned, forty_five_minutes, last_seat
from order_timers.workload import Workload

SHARES = (0.999, 0.9999, 0.99999)
PARTS = 3  # the shop, its database, its queue
WEAK = 0.99


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


def availability_document() -> dict[str, Any]:
    """The arithmetic of MISSION X7; minutes are those of a year."""
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

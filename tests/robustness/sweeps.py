"""All the sweeps that there are, by name, and what some of them need of the machine."""

from __future__ import annotations

from budget import BudgetSweep
from crash_states import explore
from delay_histories import DELAY_SWEEP
from elastic_histories import ELASTIC_SWEEP
from fault_sweep import every_run, sweep
from flips import FlipSweep
from fuzz import FuzzSweep
from group_histories import GROUP_SWEEP
from http_sweep import HttpSweep
from kills import KillSweep
from netns_rounds import ReplicationSweep
from power_cuts import PowerCutSweep
from record_differential import RecordSweep
from repeats import RepeatSweep
from replica_histories import REPLICA_SWEEP
from shop_rounds import ShopSweep
from storm_histories import STORM_SWEEP
from sweep import Outcome, Sweep
from transaction_histories import TRANSACTION_SWEEP

CRASH_STATES = 10_000  # of one seed
FAULTS = 250  # of one seed


class CrashSweep:
    """The crash states of `make robustness`; a seed is `CRASH_STATES` of them."""

    name, figure, unit, goal, share = "crash-states", "G1", "simulated crash states", 2_000_000, 35

    def run(self, seed: int, deadline: float) -> Outcome:
        report = explore(seed, CRASH_STATES, deadline=deadline)
        counts = {name: getattr(report, name) for name in ("repeated", "boundaries", "inside_recovery", "recoveries")}
        return Outcome(report.states, tuple(map(str, report.violations)), counts)


class FaultSweep:
    """The failing disk calls of `make robustness`; a seed is the next `FAULTS` of them, in an order that is always the
    same; when all are through, from the front.
    """

    name, figure, unit, share = "faults", "G4", "failing disk calls", 10

    @property
    def goal(self) -> int:
        return len(every_run(0))

    def run(self, seed: int, deadline: float) -> Outcome:
        runs = every_run(0)
        chosen = [runs[number % len(runs)] for number in range((seed - 1) * FAULTS, seed * FAULTS)]
        report = sweep(chosen, deadline=deadline)
        counts = {name: getattr(report, name) for name in ("rejected_starts", "rejected_looks", "fenced")}
        return Outcome(report.runs, tuple(map(str, report.violations)), counts)


_ALL: tuple[Sweep, ...] = (
    CrashSweep(),
    PowerCutSweep(),
    KillSweep(),
    ReplicationSweep(),
    ShopSweep(),
    FaultSweep(),
    FlipSweep(),
    FuzzSweep(),
    HttpSweep(),
    RecordSweep(),
    BudgetSweep(),
    RepeatSweep(),
    GROUP_SWEEP,
    ELASTIC_SWEEP,
    TRANSACTION_SWEEP,
    DELAY_SWEEP,
    REPLICA_SWEEP,
    STORM_SWEEP,
)

SWEEPS = {sweep.name: sweep for sweep in _ALL}
NEEDS = {  # see tests/capabilities
    PowerCutSweep.name: "loop device",
    ReplicationSweep.name: "network-namespaces",
    ShopSweep.name: "postgresql",
}

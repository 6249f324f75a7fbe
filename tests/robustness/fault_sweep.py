"""Failing disk calls (figure G4): every place in the store that calls the disk, every error, once or for ever.

First a scenario is run without a fault, and each call is noted with the line from which it came. Then each call fails
in turn. Afterwards the disk is sound again: everything acknowledged must be there, after a SIGKILL and after a power
cut. Everything follows from the scenario and the fault; to see one run again:

    .venv/bin/python tests/robustness/fault_sweep.py SCENARIO NUMBER KIND MODE
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fault_journal import BrokenPromiseError, Journal, ReadRejectedError
from fault_life import OPTIONS, BrokerLife, Fault, FaultyCalls
from fault_scenarios import BROKER_SCENARIOS, scenario
from fault_sites import Seen, Site, caller, unreached
from fault_tools import Look
from quiet import quiet
from simulation import few_collections, run_simulation

from mq_broker.processor.broker import Broker
from mq_broker.testing import broker_options
from osenv import SeededRng, SimClock, SimDisk

SHORT = "SHORT"
KINDS = ("EIO", "ENOSPC", "EINTR", SHORT)
PARTS = 100  # of all runs: a part takes about half a minute
TOOLS = "tools"
SCENARIOS = (*BROKER_SCENARIOS, TOOLS)
STEP_S, LATER_S = 15, 90  # how often is looked for delayed messages; until then each of a scenario has come


@dataclass(frozen=True, slots=True)
class Run:
    """One fault in one scenario."""

    scenario: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.scenario} {self.fault.number} {self.fault.kind} {self.fault.mode}"


@dataclass(frozen=True, slots=True)
class Violation:
    """What must not be, and where."""

    run: Run
    seen: Seen | None
    text: str

    def __str__(self) -> str:
        where = f"{self.seen.file}:{self.seen.line} {self.seen.method}" if self.seen else "?"
        return f"{where}: {self.text}; again: .venv/bin/python tests/robustness/fault_sweep.py {self.run}"


@dataclass
class SweepReport:
    """What was done. `seen` are the places from which calls came, with a fault or without."""

    runs: int = 0
    rejected_starts: int = 0
    rejected_looks: int = 0
    fenced: int = 0
    failed: set[Seen] = field(default_factory=set)
    seen: set[Seen] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)

    @property
    def unreached(self) -> list[Site]:
        """Places in the source of the store and its tools from which no call came."""
        return unreached(self.seen)

    def __str__(self) -> str:
        return (
            f"{self.runs:,} runs: {len(self.failed)} places failed, {len(self.seen)} seen, {len(self.unreached)} not "
            f"reached; {self.rejected_starts} starts and {self.rejected_looks} looks rejected, {self.fenced} brokers "
            f"fenced; "
            f"{len(self.violations)} violations"
        )


@cache
def recorded(name: str) -> tuple[Seen | None, ...]:
    """Where each call of a scenario comes from; its number is its place in the tuple, from 1."""
    places: list[Seen | None] = [None]
    calls = FaultyCalls(watch=lambda call, path: places.append(caller(call)))
    wrong = _look(calls).wrong if name == TOOLS else _live(name, calls).wrong
    assert not wrong, wrong  # without a fault nothing may go wrong
    return tuple(places)


def syncs_of(name: str, folder: Path) -> list[int]:
    """The numbers of the calls of a scenario, without a fault, that sync a file of this folder."""
    numbers: list[int] = []

    def watch(call: str, path: Path) -> None:
        if call == "sync_data" and path.parent == folder:
            numbers.append(calls.count)

    calls = FaultyCalls(watch=watch)
    _live(name, calls)
    return numbers


def _live(name: str, calls: FaultyCalls) -> BrokerLife:
    plan = scenario(name)
    life = plan.life(calls)
    run_simulation(life.run(plan.steps))
    return life


def _look(calls: FaultyCalls) -> Look:
    look = Look(scenario("crashed").disk.fork(), calls)
    look.run()
    return look


def faults_of(name: str, number: int) -> Iterator[Fault]:
    """Every fault of one call: each error once and for ever, and a disk that dies at this call."""
    seen = recorded(name)[number]
    for kind in KINDS:
        if kind != SHORT or (seen is not None and seen.method == "pwrite"):
            yield from (Fault(number, kind, mode) for mode in ("ONCE", "FOREVER"))
    yield Fault(number, "EIO", "DEAD")


def sample(seed: int) -> dict[str, list[Run]]:
    """By scenario: for each place in the source one of its calls with every error, and with a disk that dies at it.

    A place that several scenarios reach is in the first of them. `seed` says which of its calls fails, and which errors
    come once and which for ever.
    """
    rng, known = SeededRng(seed), set[Seen]()
    runs: dict[str, list[Run]] = {}
    for name in SCENARIOS:
        calls: dict[Seen, list[int]] = {}
        for number, seen in enumerate(recorded(name)):
            if seen is not None and seen not in known:
                calls.setdefault(seen, []).append(number)
        known.update(calls)
        chosen = [rng.choice(numbers) for numbers in calls.values()]
        runs[name] = [Run(name, fault) for number in chosen for fault in _one_of_each_kind(rng, name, number)]
    return runs


def _one_of_each_kind(rng: SeededRng, name: str, number: int) -> list[Fault]:
    *lasting_or_not, dead = faults_of(name, number)  # in pairs: once, for ever
    return [*(rng.choice(pair) for pair in zip(lasting_or_not[::2], lasting_or_not[1::2], strict=True)), dead]


def every_run(seed: int) -> list[Run]:
    """Every call of every scenario with every fault, in an order that `seed` says."""
    runs = [
        Run(name, fault)
        for name in SCENARIOS
        for number in range(1, len(recorded(name)))
        for fault in faults_of(name, number)
    ]
    SeededRng(seed).shuffle(runs)
    return runs


def run(seed: int, *, deadline: float = float("inf"), parts: int = PARTS) -> SweepReport:
    """One of `parts` parts of all the runs there are: `parts` seeds in a row make every one of them."""
    order, part = divmod(seed, parts)
    return sweep(every_run(order)[part::parts], deadline=deadline)


def sweep(runs: Sequence[Run], *, deadline: float = float("inf")) -> SweepReport:
    """Make these runs, or as many as the time until `deadline` (of time.monotonic) allows."""
    report = SweepReport()
    with quiet(), few_collections():
        for name in {run.scenario for run in runs}:
            report.seen.update(seen for seen in recorded(name) if seen is not None)
        for run in runs:
            if time.monotonic() >= deadline:
                break
            _make(run, report)
    return report


def seen_in(runs: Sequence[Run]) -> set[Seen]:
    """The places from which calls come in these runs, with their faults; nothing is judged."""
    report = SweepReport()
    with quiet(), few_collections():
        for run in runs:
            _watched(run, report)
    return report.seen


def _make(run: Run, report: SweepReport) -> None:
    place = recorded(run.scenario)[run.fault.number]
    done = _watched(run, report)
    wrong = done.wrong
    if isinstance(done, Look):
        report.rejected_looks += done.rejected
    else:
        report.rejected_starts += not done.started
        report.fenced += done.fenced
        wrong = wrong + _aftermath(done, run.fault.number)
    report.runs += 1
    if place is not None and done.calls.method:
        report.failed.add(place)
    report.violations += [Violation(run, place, text) for text in wrong]


def _watched(run: Run, report: SweepReport) -> BrokerLife | Look:
    """The run; what calls only because something failed is noted in `seen`."""

    def watch(call: str, path: object) -> None:
        if calls.method and (seen := caller(call)) is not None:
            report.seen.add(seen)

    calls = FaultyCalls(run.fault, watch=watch)
    return _look(calls) if run.scenario == TOOLS else _live(run.scenario, calls)


def _aftermath(life: BrokerLife, seed: int) -> list[str]:
    """What is wrong when the disk is sound again, after each accident that may have ended the life."""
    wrong = []
    if life.calls.syncs_after:
        wrong.append(f"the log was synced {life.calls.syncs_after} times after a sync had failed")
    life.disk.kill()
    found = {life.disk.fingerprint(): ("a SIGKILL", life.disk)}
    cut = life.disk.lost_states(SeededRng(seed), exhaustive_units_max=0, samples=3)
    for number, disk in enumerate(cut):
        found.setdefault(disk.fingerprint(), (f"power cut {number}", disk))
    for accident, disk in found.values():
        wrong += [f"after {accident}: {text}" for text in _restart(disk, life.journal, life.clock.wall_ms())]
    return wrong


def _restart(disk: SimDisk, journal: Journal, wall_ms: int) -> list[str]:
    """What is wrong with a sound broker on this disk."""

    async def live() -> None:
        clock = SimClock(wall_ms)
        broker = Broker(disk, clock, broker_options(), OPTIONS, SeededRng(2))
        await broker.open()
        running = asyncio.create_task(broker.run())
        try:
            await journal.compare(broker)
            await _wait_for_delayed(journal, broker, clock)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await broker.close()

    disk.used_share = 0.1
    try:
        run_simulation(live())
    except (BrokenPromiseError, ReadRejectedError) as error:
        return [str(error)]
    except Exception as error:  # whatever it is, a sound disk gives no reason for it
        return [repr(error)]
    return []


async def _wait_for_delayed(journal: Journal, broker: Broker, clock: SimClock) -> None:
    """Let time pass until they have come. Raises BrokenPromiseError, ReadRejectedError."""
    for _ in range(LATER_S // STEP_S - 1):
        await clock.advance(STEP_S)
        if not await journal.missing_delayed(broker):
            return
    await clock.advance(STEP_S)
    if missing := await journal.missing_delayed(broker):
        raise BrokenPromiseError(f"the delayed message {missing[0][:20]!r} has not arrived")


def main(arguments: Sequence[str]) -> None:
    """Show one run."""
    name, number, kind, mode = arguments
    logging.basicConfig(level=logging.INFO)
    report = SweepReport()
    _make(Run(name, Fault(int(number), kind, mode)), report)
    for violation in report.violations:
        print(violation)
    print(report)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Simulated crash states (figure G1): power cuts at every I/O boundary of random lives of a store.

A workload is a chain of lives: recover, work, crash somewhere, also inside recovery, perhaps lose a file that the log
can tell again, recover, work on. At each boundary the disks that a power cut could leave (all, or some where there are
many) and the one that a SIGKILL leaves are recovered by the production code and held to the promises. Everything
follows from the seed; to see one state again:

    .venv/bin/python tests/robustness/crash_states.py SAMPLING SEED WORKLOAD LIFE BOUNDARY STATE
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from itertools import chain

from crash_checks import EVERYTHING_EXTRA, Extras, Recovered, verify
from crash_history import History
from crash_life import SIZES, Boundary, Life, small_store
from crash_losses import lose_something
from quiet import quiet
from simulation import few_collections, run_simulation

from mq_broker.store.message_store import FlushDiskType
from osenv import SeededRng, SimClock, SimDisk

START_MS = 1_700_000_000_000
LIVES = 4
WALL_STEPS_MS = (0, 5_000, 86_400_000, -86_400_000)
AGAIN_EVERY, KEYS_EVERY = 3, 8  # of so many states one is recovered twice, or has its index checked
KILLED = 0  # the number of the state that a SIGKILL leaves; those of power cuts follow
AT_THE_END = -1  # the state with which the next life would have begun
POLICIES = (*(FlushDiskType.SYNC_FLUSH,) * 3, FlushDiskType.ASYNC_FLUSH)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How much of each life is looked at: this share of its boundaries, and of each so many states."""

    name: str
    share: float
    exhaustive_units_max: int
    samples: int


WIDE = Sampling("wide", 0.15, 2, 6)
# all subsets of up to 10 units, else 1,000 samples (docs/reference/faults.md#store)
DEEP = Sampling("deep", 0.02, 10, 1_000)
DEEP_EVERY = 5
SAMPLINGS = {one.name: one for one in (WIDE, DEEP)}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a state is found again. Boundary 0 is the life itself; see KILLED and AT_THE_END for states."""

    sampling: str
    seed: int
    workload: int
    life: int
    boundary: int = 0
    state: int = 0

    def __str__(self) -> str:
        return f"{self.sampling} {self.seed} {self.workload} {self.life} {self.boundary} {self.state}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    place: Place
    text: str

    def __str__(self) -> str:
        return f"{self.text}; again: .venv/bin/python tests/robustness/crash_states.py {self.place}"


@dataclass
class CrashReport:
    """What was done. `repeated` states are the same disk as one that had been recovered in this life already."""

    workloads: int = 0
    lives: int = 0
    boundaries: int = 0
    states: int = 0
    repeated: int = 0
    recoveries: int = 0
    inside_recovery: int = 0
    records: int = 0
    violations: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.states:,} states (and {self.repeated:,} seen before) at {self.boundaries:,} boundaries of "
            f"{self.lives} lives in {self.workloads} workloads, {self.inside_recovery:,} of them inside a recovery; "
            f"{self.recoveries:,} recoveries; {self.records:,} records; {len(self.violations)} violations"
        )


def explore(
    seed: int,
    budget_states: int,
    *,
    sampling: Sampling | None = None,
    flush: FlushDiskType | None = None,
    deadline: float = float("inf"),
    violations_max: int = 5,
) -> CrashReport:
    """Look at `budget_states` different states, or until `deadline` (of time.monotonic).

    Without `sampling` one of DEEP_EVERY workloads is looked at deeply, at fewer boundaries. With `flush` every store
    has this policy, else three of four are on disk before they acknowledge.
    """
    report = CrashReport()

    def done() -> bool:
        full = report.states >= budget_states or len(report.violations) >= violations_max
        return full or time.monotonic() >= deadline

    async def run() -> None:
        while not done():
            deep = report.workloads % DEEP_EVERY == DEEP_EVERY - 1
            workload = Workload(seed, report.workloads, sampling or (DEEP if deep else WIDE), flush, report)
            report.workloads += 1
            async for life in workload.lives():
                known: dict[tuple[object, ...], Recovered] = {}
                for moment in life.boundaries:
                    report.boundaries += 1
                    await workload.look_at(moment, known, done)
                    if done():
                        return

    with quiet(), few_collections():
        run_simulation(run())
    return report


def replay(place: Place, *, flush: FlushDiskType | None = None) -> CrashReport:
    """Look at one state again; with boundary 0, at the life itself."""
    report = CrashReport()

    async def run() -> None:
        workload = Workload(place.seed, place.workload, SAMPLINGS[place.sampling], flush, report)
        async for life in workload.lives(only=(place.life, place.boundary)):
            for moment in life.boundaries:
                await workload.look_at(moment, {}, lambda: False, only=place.state)
            if workload.life == place.life and place.state != AT_THE_END:
                return

    run_simulation(run())
    return report


class Workload:
    """A chain of lives of one store, repeatable from two numbers."""

    def __init__(
        self, seed: int, number: int, sampling: Sampling, flush: FlushDiskType | None, report: CrashReport
    ) -> None:
        self._seed, self._number, self._sampling, self._report = seed, number, sampling, report
        self.life = 0
        self._rng = SeededRng(seed * 1_000_003 + number)
        policy = self._rng.choice(POLICIES)
        self.options = small_store(self._rng, flush or policy)
        self._body_bytes = self._rng.choice((None, None, 300, 700))
        self._size, self._retains = self._rng.choice(SIZES), self._rng.random() < 0.4

    async def lives(self, *, only: tuple[int, int] | None = None) -> AsyncIterator[Life]:
        """Each life after it has ended; the next one begins on a disk that a failure in this one has left.

        With `only` = (life, boundary) no other boundary is kept.
        """
        rng = self._rng
        life = Life(
            SimDisk(), self.options, History(), SeededRng(0), SimClock(START_MS), size=self._size, retains=self._retains
        )
        for self.life in range(LIVES):
            life.rng = SeededRng(rng.randrange(0, 1 << 60))
            life.keeps = self._keeps(rng.randrange(0, 1 << 60), only)
            self._report.lives += 1
            try:
                await life.run(rng.randrange(2, 12))
            except Exception as error:
                self._found(0, 0, error)
                return
            self._report.records += len(life.history)
            yield life
            try:
                life = await self._next(life)
            except Exception as error:
                self._found(life.end.number, AT_THE_END, error)
                return

    def _keeps(self, seed: int, only: tuple[int, int] | None) -> Callable[[int, bool], bool]:
        """Which boundaries of the coming life are looked at; those inside recovery more often than others."""
        rng, share, life = SeededRng(seed), self._sampling.share, self.life

        def keeps(number: int, recovering: bool) -> bool:
            if only is not None:
                return (life, number) == only
            return rng.random() < (3 * share if recovering else share)

        return keeps

    async def _next(self, life: Life) -> Life:
        """What comes after the failure of `life`."""
        rng, moment = self._rng, life.end
        disk, promise = moment.disk.fork(), moment.promise
        wall_ms = moment.wall_ms + rng.choice(WALL_STEPS_MS)
        how = rng.randrange(0, 4)
        if killed := how == 0:
            disk.kill()
        elif how == 1:
            disk = next(disk.lost_states(rng, exhaustive_units_max=0, samples=2))  # nothing survives
        else:
            disk.crash(rng)
        if rng.random() < 0.3:
            floors = lose_something(disk, self.options.layout, promise, rng)
            promise = replace(promise, tally_floors=floors)
        found = await verify(disk.fork(), self.options, promise, wall_ms)
        return Life(
            disk,
            self.options,
            promise.history.cut(found.count),
            rng,
            SimClock(wall_ms),
            floor=promise.floor if killed else found.count,
            begins=(promise.log_begins[0] if killed else found.log_begin, found.log_begin),
            serial=life.serial,
            tally_floors=dict(promise.tally_floors),
            size=self._size,
            body_bytes=self._body_bytes,
            retains=self._retains,
        )

    async def look_at(
        self,
        moment: Boundary,
        known: dict[tuple[object, ...], Recovered],
        done: Callable[[], bool],
        *,
        only: int | None = None,
    ) -> None:
        """Recover the states of one boundary; `known` are the disks that were recovered in this life, with counts."""
        report, sampling = self._report, self._sampling
        killed = moment.disk.fork()
        killed.kill()
        rng = SeededRng(((self._seed * 1_009 + self._number) * 1_009 + self.life) * 1_000_003 + moment.number)
        lost = moment.disk.lost_states(
            rng, exhaustive_units_max=sampling.exhaustive_units_max, samples=sampling.samples
        )
        for state, disk in enumerate(chain([killed], lost)):
            if done():
                return
            if only not in {None, state}:
                continue
            found = (state == KILLED, *disk.fingerprint())  # what was not synced is in doubt in a killed one
            if found in known and moment.promise.allows(known[found]):
                report.repeated += 1
                continue
            extras = EVERYTHING_EXTRA if only is not None else self._extras(state)
            report.states += 1
            report.inside_recovery += moment.recovering
            report.recoveries += 1 + 2 * extras.lasting + extras.again
            try:
                known[found] = await verify(disk, self.options, moment.promise, moment.wall_ms, extras)
            except Exception as error:
                self._found(moment.number, state, error, f"before {moment.call} of {moment.path}: ")

    def _extras(self, state: int) -> Extras:
        number = self._report.states
        return Extras(lasting=state == KILLED, again=number % AGAIN_EVERY == 0, keys=number % KEYS_EVERY == 0)

    def _found(self, boundary: int, state: int, error: Exception, when: str = "") -> None:
        place = Place(self._sampling.name, self._seed, self._number, self.life, boundary, state)
        self._report.violations.append(Violation(place, f"{when}{type(error).__name__}: {error}"))


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    print(replay(Place(name, *map(int, numbers))).violations or "nothing wrong")

"""What every kind of stateful history shares: how histories are run, how one ends, and how they become a sweep."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from quiet import quiet
from simulation import SimLoop, few_collections
from sweep import Outcome

SWEEP_HISTORIES = 50  # of one seed


def run_machine(machine: type[RuleBasedStateMachine], count: int, seed: int, steps_max: int) -> None:
    """At least so many histories from one seed. Raises what broke, with the steps that led to it."""
    options = settings(
        max_examples=count,
        stateful_step_count=steps_max,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),  # a history is short; to shrink one takes minutes
        suppress_health_check=list(HealthCheck),
    )
    with quiet(), few_collections():
        run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=options)


async def end_all() -> None:
    """Let what the dead have left behind end before its loop does."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class History(RuleBasedStateMachine):
    """One history, on a loop of its own. `ran` counts, over all histories, how often each rule ran, and what came of
    it.

    A history ends with the first violation: what its end finds afterwards would hide the reason. `_world` is whatever
    the history happens to; it has coroutines `finish` and `close`, and a `model` with `counts`.
    """

    ran: ClassVar[Counter[str]]
    _world: Any
    _is_broken = False

    def _begin(self, world: Any, opening: Coroutine[Any, Any, None]) -> None:
        self._loop, self._world = SimLoop(), world
        self._take(opening)

    def _take(self, step: Coroutine[Any, Any, None]) -> None:
        self._is_broken = True  # unless it ends well
        self._loop.run_until_complete(step)
        self._is_broken = False

    def _count(self) -> None:
        self.ran.update(self._world.model.counts)

    def teardown(self) -> None:
        if not hasattr(self, "_world"):
            return
        try:
            if not self._is_broken:
                self._loop.run_until_complete(self._world.finish())
        finally:
            self._count()
            self._loop.run_until_complete(self._world.close())
            self._loop.run_until_complete(end_all())
            self._loop.close()


def executed(ran: Counter[str]) -> str:
    """What has happened how often, for people."""
    return ", ".join(f"{count} {name}" for name, count in ran.most_common())


@dataclass(frozen=True)
class HistorySweep:
    """Histories of `make robustness`; a seed is `histories` of them.

    `run_histories` makes so many from a seed and counts under "histories" and other names what happened.
    """

    name: str
    figure: str
    unit: str
    run_histories: Callable[[int, int], Counter[str]]
    goal: int = 100_000
    share: int = 15
    histories: int = SWEEP_HISTORIES

    def run(self, seed: int, deadline: float) -> Outcome:
        if time.monotonic() >= deadline:
            return Outcome(0)
        try:
            ran = self.run_histories(self.histories, seed)
        except Exception as error:
            notes = "\n".join([repr(error), *getattr(error, "__notes__", ())])
            return Outcome(self.histories, (f"seed {seed}: {notes}",))
        return Outcome(ran.pop("histories"), counts=dict(ran))

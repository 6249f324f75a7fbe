"""What every kind of stateful history shares: how histories are run, how one ends, and how they become a sweep."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import StopTest
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from quiet import quiet
from simulation import few_collections
from sweep import Outcome

SWEEP_HISTORIES = 50  # of one seed


def run_machine(machine: type[RuleBasedStateMachine], count: int, seed: int, steps_max: int) -> None:
    """So many histories from one seed. Raises what broke, with the steps that led to it."""
    options = settings(
        max_examples=count,
        stateful_step_count=steps_max,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),  # a history is short; to shrink one takes minutes
        suppress_health_check=list(HealthCheck),
    )
    counted = _Counted(machine, count)

    @hypothesis.seed(seed)
    def begin() -> RuleBasedStateMachine:
        return counted.begin()

    with quiet(), few_collections():
        try:
            run_state_machine_as_test(begin, settings=options)  # type: ignore[arg-type]  # a factory, says its docstring
        except _EnoughError:
            return


class _EnoughError(KeyboardInterrupt):
    """So many histories have ended well. What interrupts hypothesis ends it at once, without a word."""


class _Counted:
    """So many histories of a machine, and no more: hypothesis does not count those that it breaks off, which have been
    checked to their end as well, and would run one in six for nothing.

    Invariant: after a history that failed nothing is left out, for hypothesis runs it again in order to tell it.
    """

    def __init__(self, machine: type[RuleBasedStateMachine], count: int) -> None:
        self._count, self._begun, self._ended_well = count, 0, 0
        counted = self

        class Watched(machine):  # type: ignore[misc, valid-type]
            def teardown(self) -> None:
                ending = sys.exc_info()[1]
                super().teardown()
                counted._ended_well += ending is None or isinstance(ending, StopTest)

        Watched.__name__, Watched.__qualname__ = machine.__name__, machine.__qualname__
        self._machine: type[RuleBasedStateMachine] = Watched

    def begin(self) -> RuleBasedStateMachine:
        """The next history. Raises _EnoughError after the last one."""
        if self._begun >= self._count and self._begun == self._ended_well:
            raise _EnoughError
        self._begun += 1
        return self._machine()


async def end_all() -> None:
    """Let what the dead have left behind end before its loop does."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def executed(ran: Counter[str]) -> str:
    """What has happened how often, for people."""
    return ", ".join(f"{count} {name}" for name, count in ran.most_common())


@dataclass(frozen=True)
class HistorySweep:
    """Histories of `make robustness`; a seed is SWEEP_HISTORIES of them.

    `run_histories` makes so many from a seed and counts under "histories" and other names what happened.
    """

    name: str
    figure: str
    unit: str
    run_histories: Callable[[int, int], Counter[str]]
    goal: int = 100_000
    share: int = 15

    def run(self, seed: int, deadline: float) -> Outcome:
        if time.monotonic() >= deadline:
            return Outcome(0)
        try:
            ran = self.run_histories(SWEEP_HISTORIES, seed)
        except Exception as error:
            notes = "\n".join([repr(error), *getattr(error, "__notes__", ())])
            return Outcome(SWEEP_HISTORIES, (f"seed {seed}: {notes}",))
        return Outcome(ran.pop("histories"), counts=dict(ran))

"""How stateful histories are run: exactly so many, and what breaks is told wherever it breaks."""

from __future__ import annotations

import pytest
from histories import run_machine
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import RuleBasedStateMachine, rule

COUNT, SEED, STEPS_MAX = 40, 1, 5


class Machine(RuleBasedStateMachine):
    """Breaks in the history of this number: while it begins, in a step or while it ends."""

    begun: int
    ended: int
    breaks_at: int | None
    breaks_in: str

    def __init__(self) -> None:
        super().__init__()
        Machine.begun += 1
        self._break("begin")

    @rule(_drawn=st.lists(st.integers(0, 1_000), max_size=20))
    def step(self, _drawn: list[int]) -> None:
        self._break("step")

    def teardown(self) -> None:
        Machine.ended += 1
        self._break("end")

    def _break(self, where: str) -> None:
        # So does every later one, and with them hypothesis's repetition: what fails once only is told as flaky.
        assert where != self.breaks_in or self.breaks_at is None or Machine.begun < self.breaks_at, "broken"


@pytest.fixture(autouse=True)
def _unbroken() -> None:
    Machine.begun = Machine.ended = 0
    Machine.breaks_at, Machine.breaks_in = None, ""


def test_as_many_histories_run_as_are_asked_for_and_each_to_its_end() -> None:
    run_machine(Machine, COUNT, SEED, STEPS_MAX)
    assert (Machine.begun, Machine.ended) == (COUNT, COUNT)


@pytest.mark.parametrize("where", ["begin", "step", "end"])
@pytest.mark.parametrize("number", [1, COUNT // 2, COUNT])
def test_what_breaks_in_any_history_is_raised(where: str, number: int) -> None:
    Machine.breaks_at, Machine.breaks_in = number, where
    # What breaks before anything is drawn is told as flaky, for the history before drew something.
    with pytest.raises((AssertionError, FlakyStrategyDefinition) if where == "begin" else AssertionError):
        run_machine(Machine, COUNT, SEED, STEPS_MAX)

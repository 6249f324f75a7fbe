"""The tool that goes through every interleaving: it finds lost updates, and forgets no schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from servicekit.testing.interleavings import Choices, Stage, SteppedUnits, every_choice


class Register:
    """A number in a database, as its own unit of work."""

    def __init__(self) -> None:
        self.number = 0
        self.schedule: list[str] = []

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Register]:
        yield self

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Register]:
        yield self

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Register]:
        yield self


async def increment(units: SteppedUnits[Register], name: str) -> None:
    async with units.snapshot() as unit:
        found = unit.number
        unit.schedule.append(f"{name} reads")
    async with units.writing() as unit:
        unit.number = found + 1
        unit.schedule.append(f"{name} writes")


async def schedules(count: int) -> list[tuple[int, tuple[str, ...]]]:
    """What the register holds at the end of each schedule of `count` contenders, and the schedule."""
    seen = []
    for choices in every_choice():
        register = Register()
        units = SteppedUnits(register)
        units.stage = Stage(choices)
        if await units.stage.run({name: increment(units, name) for name in "abc"[:count]}) is not None:
            seen.append((register.number, tuple(register.schedule)))
    return seen


async def test_two_contenders_meet_in_every_way_that_differs() -> None:
    seen = await schedules(2)
    assert len({schedule for _, schedule in seen}) == len(seen) == 4  # of 6: two differ in the order of reads only
    assert Counter(number for number, _ in seen) == {1: 2, 2: 2}  # half of them lose an update


async def test_no_schedule_of_three_contenders_is_forgotten() -> None:
    seen = {schedule for _, schedule in await schedules(3)}
    # 3! orders of the writes; before which of the writes each one reads: 1 x 2 x 3 ways.
    assert len(seen) == 36


async def test_a_run_can_be_repeated_by_its_choices() -> None:
    for choices in every_choice():
        register, again = Register(), Register()
        for one, made in ((register, choices), (again, None)):
            units = SteppedUnits(one)
            units.stage = Stage(made or Choices(choices.made))
            await units.stage.run({name: increment(units, name) for name in "ab"})
        assert register.schedule == again.schedule


async def test_what_a_contender_raises_is_its_result() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    (choices,) = every_choice()
    results = await Stage(choices).run({"a": fail()})
    assert results is not None
    assert isinstance(results["a"], ZeroDivisionError)

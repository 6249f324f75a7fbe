"""Every order in which the steps of concurrent use cases can meet.

    for choices in every_choice():
        units.stage = Stage(choices)  # SteppedUnits, which the use cases stand on
        results = await units.stage.run({"pay": pay(), "expire": expire()})
        if results is not None:
            ... check ...

A use case is cut before each unit of work: a unit that reads is one step, one that writes another. `every_choice` goes
through all schedules by running them again and again, each time with the next choice somewhere.

Invariants: one step runs at a time, to its end; a schedule and one that differs from it only in the order of reads that
follow each other come to the same end, and only one of them is run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

READ, WRITE = "read", "write"
_PREFIX = "contender "  # of the names of the contenders' tasks

UnitT = TypeVar("UnitT")
UnitT_co = TypeVar("UnitT_co", covariant=True)


class Choices:
    """The choices of one run: those of `beginning`, and then always the first."""

    def __init__(self, beginning: list[int]) -> None:
        self._beginning = beginning
        self._made: list[tuple[int, int]] = []  # which, of how many

    def choose(self, count: int) -> int:
        """One of `count` possibilities."""
        place = len(self._made)
        chosen = self._beginning[place] if place < len(self._beginning) else 0
        self._made.append((chosen, count))
        return chosen

    @property
    def made(self) -> list[int]:
        """What was chosen so far: the beginning of a run that goes the same way."""
        return [chosen for chosen, _ in self._made]

    def following(self) -> list[int] | None:
        """The beginning of the next run; None after the last."""
        made = [*self._made]
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        if not made:
            return None
        return [*(chosen for chosen, _ in made[:-1]), made[-1][0] + 1]


def every_choice() -> Iterator[Choices]:
    """The choices of all runs; each run has to make its choices before the next is asked for."""
    beginning: list[int] | None = []
    while beginning is not None:
        choices = Choices(beginning)
        yield choices
        beginning = choices.following()


class Stage:
    """Lets contenders go on one step at a time, in the order of the choices."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._turns: dict[str, tuple[str, asyncio.Future[None]]] = {}
        self._has_changed = asyncio.Event()

    async def turn(self, kind: str) -> None:
        """Wait until the calling contender may take its next step, which reads or writes."""
        task = asyncio.current_task()
        if task is None or not self._is_contender(task):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[task.get_name()] = (kind, turn)
        self._has_changed.set()
        await turn

    async def run(self, contenders: Mapping[str, Coroutine[Any, Any, object]]) -> dict[str, object] | None:
        """What each contender returned or raised, by name; None for a schedule that another one stands for."""
        tasks = {name: asyncio.create_task(contender, name=_PREFIX + name) for name, contender in contenders.items()}
        for task in tasks.values():
            task.add_done_callback(lambda _task: self._has_changed.set())
        last_read = ""
        while True:
            while len(self._turns) < sum(not task.done() for task in tasks.values()):
                # Not by looking again and again: a database's thread would wait for its turn with the interpreter.
                self._has_changed.clear()
                await self._has_changed.wait()
            if not self._turns:
                return {name: task.exception() or task.result() for name, task in tasks.items()}
            # Reads that follow each other are taken in the order of their names.
            able = [name for name, (kind, _) in sorted(self._turns.items()) if kind is WRITE or name > last_read]
            if not able:
                for task in tasks.values():
                    task.cancel()
                await asyncio.gather(*tasks.values(), return_exceptions=True)
                return None
            name = able[self._choices.choose(len(able))]
            kind, turn = self._turns.pop(name)
            last_read = name if kind is READ else ""
            turn.set_result(None)

    @staticmethod
    def _is_contender(task: asyncio.Task[Any]) -> bool:
        return task.get_name().startswith(_PREFIX)


class Units(Protocol[UnitT_co]):
    """What a service's units of work have in common."""

    def autocommit(self) -> AbstractAsyncContextManager[UnitT_co]: ...

    def snapshot(self) -> AbstractAsyncContextManager[UnitT_co]: ...

    def writing(self) -> AbstractAsyncContextManager[UnitT_co]: ...


class SteppedUnits(Generic[UnitT]):
    """Units of work that wait for their turn on the stage."""

    def __init__(self, units: Units[UnitT]) -> None:
        self._units = units
        self.stage: Stage | None = None

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[UnitT]:
        if self.stage is not None:
            await self.stage.turn(READ)
        async with self._units.autocommit() as unit:
            yield unit

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[UnitT]:
        if self.stage is not None:
            await self.stage.turn(READ)
        async with self._units.snapshot() as unit:
            yield unit

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[UnitT]:
        if self.stage is not None:
            await self.stage.turn(WRITE)
        async with self._units.writing() as unit:
            yield unit

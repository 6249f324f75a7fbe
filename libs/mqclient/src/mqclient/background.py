"""Background tasks with an owner.

Invariants: after `close` no task of this owner is left, unless it ignores that it is cancelled, which is logged; an
exception that nobody expected is always logged, with its trace, and never ends a periodic task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from osenv import Clock
from osenv.clock import timeout
from telemetry.context import outside_spans

logger = logging.getLogger("mqclient.background")

CANCEL_PATIENCE_S = 1.0  # for code of the application that does something else than end when it is cancelled

T = TypeVar("T")


class BackgroundTasks:
    """Starts tasks, keeps them alive, and cancels what still runs when it is closed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they are cancelled

    def start(
        self, coroutine: Coroutine[Any, Any, Any], name: str, *, awaited: bool = False, in_span: bool = False
    ) -> asyncio.Task[Any]:
        """Run `coroutine` as a task called `name`; with `awaited`, somebody awaits it and hears of its errors.

        It leaves the current span, which most tasks outlive by far, unless it is a part of that and is `in_span`.
        """
        context = None if in_span else outside_spans()
        task = asyncio.get_running_loop().create_task(coroutine, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._answered if awaited else self._finished)
        return task

    def start_periodic(
        self, action: Callable[[], Awaitable[object]], *, first_delay_s: float, interval_s: float, name: str
    ) -> asyncio.Task[Any]:
        """Run `action` after `first_delay_s` and then with `interval_s` between two runs."""
        return self.start(self._repeat(action, first_delay_s, interval_s, name), name)

    @property
    def count(self) -> int:
        """How many run."""
        return len(self._tasks)

    async def drain(self, seconds: float) -> int:
        """Wait until nothing runs any more, for at most `seconds`; return how many still do."""
        if seconds <= 0:
            return len(self._tasks)
        try:
            async with timeout(self._clock, seconds):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            return len(self._tasks)
        return 0

    async def close(self) -> None:
        """Cancel everything and wait until it has ended; what has not after CANCEL_PATIENCE_S is logged and left."""
        stubborn = await self._cancel_all()
        if stubborn:
            names = ", ".join(sorted(task.get_name() for task in stubborn))
            logger.error("%d tasks go on although they were cancelled: %s", len(stubborn), names)

    async def _cancel_all(self) -> list[asyncio.Task[Any]]:
        """What goes on all the same."""
        myself = asyncio.current_task()
        if not self._all_but(myself):
            return []
        try:
            async with timeout(self._clock, CANCEL_PATIENCE_S):
                while others := self._all_but(myself):
                    for task in others:
                        task.cancel()
                    await asyncio.wait(others)
        except TimeoutError:
            return self._all_but(myself)
        return []

    def _all_but(self, one: asyncio.Task[Any] | None) -> list[asyncio.Task[Any]]:
        return [task for task in self._tasks if task is not one]

    async def _repeat(
        self, action: Callable[[], Awaitable[object]], first_delay_s: float, interval_s: float, name: str
    ) -> None:
        await self._clock.sleep(first_delay_s)
        while True:
            try:
                await action()
            except Exception:
                logger.exception("%s failed; it runs again in %.3f s", name, interval_s)
            await self._clock.sleep(interval_s)

    def _answered(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # looked at, because those who awaited it may all have given up meanwhile

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the background task %s ended with an error", task.get_name(), exc_info=error)


async def wait_event(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Wait until `event` is set, for at most `seconds`, and say whether it is. Clears nothing."""
    if event.is_set() or seconds <= 0:
        return event.is_set()
    try:
        async with timeout(clock, seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


async def to_the_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await `coroutine` to its end even when the caller is cancelled meanwhile; the cancellation is raised afterwards.

    For endings that are short by themselves: half of them would leave something behind.
    """
    task = asyncio.get_running_loop().create_task(coroutine, name="mqclient ending")
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) is not None:
        logger.error("an ending failed, and its caller was cancelled meanwhile", exc_info=failure)
    raise cancellation

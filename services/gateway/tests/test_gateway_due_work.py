"""The loop behind decisions and webhooks: it sleeps until something is due, wakes when told, outlives its database."""

from __future__ import annotations

import asyncio

from osenv import SimClock
from osenv.sim_clock import settle
from sandbox_gateway.webhooks import SLEEP_MAX_S, STORAGE_RETRY_MS, DueWork
from servicekit.errors import StorageUnavailableError


class Work:
    """Is due at `moment_ms`; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.moment_ms: int | None = None
        self.is_database_away = False

    async def __call__(self) -> int | None:
        self.calls += 1
        if self.is_database_away:
            raise StorageUnavailableError("away")
        return self.moment_ms


async def test_it_works_when_something_is_due_when_it_is_woken_and_now_and_then() -> None:
    clock, work = SimClock(), Work()
    loop = DueWork("work", work, clock)
    running = asyncio.create_task(loop.run())
    work.moment_ms = clock.wall_ms() + 100
    await clock.advance(0.099)
    assert work.calls == 1
    work.moment_ms = None
    await clock.advance(0.001)
    assert work.calls == 2
    loop.wake()
    await settle()
    assert work.calls == 3
    await clock.advance(SLEEP_MAX_S)
    assert work.calls == 4
    loop.stop()
    await running


async def test_a_wall_clock_that_jumps_delays_nothing_for_long() -> None:
    clock, work = SimClock(), Work()
    loop = DueWork("work", work, clock)
    work.moment_ms = clock.wall_ms() + 86_400_000
    running = asyncio.create_task(loop.run())
    await settle()
    clock.set_wall_ms(work.moment_ms)
    work.moment_ms = None
    await clock.advance(SLEEP_MAX_S)
    assert work.calls == 2
    loop.stop()
    await running


async def test_a_database_that_is_away_is_asked_again() -> None:
    clock, work = SimClock(), Work()
    work.is_database_away = True
    loop = DueWork("work", work, clock)
    running = asyncio.create_task(loop.run())
    await clock.advance(3 * STORAGE_RETRY_MS / 1000)
    assert work.calls == 4
    work.is_database_away = False
    await clock.advance(STORAGE_RETRY_MS / 1000)
    assert work.calls == 5
    await clock.advance(STORAGE_RETRY_MS / 1000)
    assert work.calls == 5
    loop.stop()
    await running


async def test_what_was_woken_while_it_worked_is_worked_on_again() -> None:
    clock, work = SimClock(), Work()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow_work() -> int | None:
        begun.set()
        await go_on.wait()
        return await work()

    loop = DueWork("work", slow_work, clock)
    running = asyncio.create_task(loop.run())
    await begun.wait()
    loop.wake()
    go_on.set()
    await settle()
    assert work.calls == 2
    loop.stop()
    await running

"""Clocks: the simulated one moves only when told, the real one moves, and timeouts mean the same on both.

Waiting for conditions, in real time and in the time of a test.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from osenv import RealClock, SimClock, sim_clock, until
from osenv.clock import local_hour, timeout
from osenv.sim_clock import settle

FOREVER = 1e9


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_sim_time_stands_still_until_it_is_moved() -> None:
    clock = SimClock(wall_ms=1_000)
    await settle()
    assert (clock.wall_ms(), clock.monotonic()) == (1_000, 0.0)
    await clock.advance(1.5)
    assert (clock.wall_ms(), clock.monotonic()) == (2_500, 1.5)


async def test_timers_run_in_the_order_of_due_time_and_then_of_creation() -> None:
    clock, ran = SimClock(), []
    for name, seconds in [("c", 3), ("a", 1), ("b1", 2), ("b2", 2), ("now", -5)]:
        clock.call_later(seconds, lambda name=name: ran.append((name, clock.monotonic())))  # type: ignore[misc]
    await clock.advance(2)
    assert ran == [("now", 0), ("a", 1), ("b1", 2), ("b2", 2)]
    await clock.advance(0.999)
    assert len(ran) == 4
    await clock.advance(0.001)
    assert ran[-1] == ("c", 3)


async def test_timer_started_by_a_timer_runs_in_the_same_advance() -> None:
    clock, ran = SimClock(), []

    def first() -> None:
        clock.call_later(1, lambda: ran.append(clock.monotonic()))

    clock.call_later(1, first)
    await clock.advance(10)
    assert ran == [2]
    assert clock.monotonic() == 10


async def test_cancelled_timer_does_not_run() -> None:
    clock, ran = SimClock(), []
    timer = clock.call_later(1, lambda: ran.append("late"))
    assert clock.timers == 1
    timer.cancel()
    timer.cancel()
    assert clock.timers == 0
    await clock.advance(2)
    assert ran == []


async def test_sleepers_wake_at_their_own_time() -> None:
    clock, woken = SimClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(clock.monotonic())

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (1800, 10, 0, -1)]
    await clock.advance(1799.999)
    assert woken == [0, 0, 10]
    await clock.advance(0.001)
    assert woken == [0, 0, 10, 1800]
    await asyncio.gather(*tasks)


async def test_cancelled_sleep_leaves_no_timer() -> None:
    clock = SimClock()
    task = asyncio.create_task(clock.sleep(10))
    await settle()
    assert clock.timers == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.timers == 0


async def test_stepping_the_wall_clock_leaves_monotonic_time_alone() -> None:
    clock = SimClock(wall_ms=1_000_000)
    await clock.advance(10)
    clock.set_wall_ms(5)
    assert (clock.wall_ms(), clock.monotonic()) == (5, 10)
    await clock.advance(1)
    assert (clock.wall_ms(), clock.monotonic()) == (1_005, 11)


async def test_sim_time_never_goes_back() -> None:
    clock = SimClock()
    await clock.advance(5)
    with pytest.raises(ValueError, match="does not go back"):
        await clock.advance(-1)

    inner = asyncio.create_task(clock.advance(100))
    await clock.advance(10)  # the other task runs inside this one
    await inner
    assert clock.monotonic() == 105


async def test_milliseconds_add_up_without_drift() -> None:
    clock = SimClock(wall_ms=0)
    for _ in range(1_000):
        await clock.advance(0.001)
    assert clock.wall_ms() == 1_000


async def test_real_clock_is_the_systems() -> None:
    clock = RealClock()
    assert abs(clock.wall_ms() - time.time() * 1000) < 10_000
    begin = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() - begin >= 0.01


async def test_real_timer_runs_and_can_be_cancelled() -> None:
    clock, ran = RealClock(), asyncio.Event()
    clock.call_later(0.001, lambda: pytest.fail("cancelled")).cancel()
    clock.call_later(0.002, ran.set)
    await ran.wait()


async def test_body_that_takes_too_long_ends_in_timeout_error() -> None:
    clock = SimClock()

    async def body() -> None:
        async with timeout(clock, 3):
            await forever()

    task = asyncio.create_task(body())
    await clock.advance(2.999)
    assert not task.done()
    await clock.advance(0.001)
    with pytest.raises(TimeoutError, match=r"not done within 3\.000 s"):
        await task
    assert clock.timers == 0


async def test_body_in_time_leaves_no_timer_and_no_cancellation() -> None:
    clock = SimClock()
    async with timeout(clock, 3):
        await asyncio.sleep(0)
    assert clock.timers == 0
    await clock.advance(10)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_cancellation_from_outside_stays_a_cancellation() -> None:
    clock = SimClock()

    async def body() -> None:
        async with timeout(clock, 3):
            await forever()

    task = asyncio.create_task(body())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.timers == 0


@pytest.mark.parametrize("expires_first", [True, False])
async def test_cancellation_from_outside_wins_over_expiry_in_the_same_step(expires_first: bool) -> None:
    expire: list[Callable[[], None]] = []

    class HeldClock(SimClock):
        def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
            expire.append(callback)
            return super().call_later(seconds, callback)

    async def body() -> None:
        async with timeout(HeldClock(), 3):
            await forever()

    task = asyncio.create_task(body())
    await settle()
    for call in (expire[0], task.cancel) if expires_first else (task.cancel, expire[0]):
        call()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_inner_and_outer_timeouts_are_told_apart() -> None:
    clock, seen = SimClock(), []

    async def body(outer: float, inner: float) -> None:
        try:
            async with timeout(clock, outer):
                try:
                    async with timeout(clock, inner):
                        await forever()
                except TimeoutError:
                    seen.append("inner")
                    await forever()
        except TimeoutError:
            seen.append("outer")

    first, second = asyncio.create_task(body(5, 2)), asyncio.create_task(body(2, 5))
    await clock.advance(10)
    await asyncio.gather(first, second)
    assert seen == ["inner", "outer", "outer"]


async def test_another_error_made_of_the_expiry_takes_the_cancellation_back() -> None:
    clock, left = SimClock(), []

    async def body() -> None:
        try:
            async with timeout(clock, 1):
                try:
                    await forever()
                except asyncio.CancelledError:
                    raise ConnectionError("gave up") from None
        except ConnectionError:
            task = asyncio.current_task()
            assert task is not None
            left.append(task.cancelling())

    task = asyncio.create_task(body())
    await clock.advance(1)
    await task
    assert left == [0]


async def test_body_that_swallows_the_expiry_ends_normally() -> None:
    clock, left = SimClock(), []

    async def body() -> None:
        async with timeout(clock, 1):
            with contextlib.suppress(asyncio.CancelledError):
                await forever()
        task = asyncio.current_task()
        assert task is not None
        left.append(task.cancelling())

    task = asyncio.create_task(body())
    await clock.advance(1)
    await task
    assert left == [0]


async def test_errors_of_the_body_pass_through() -> None:
    clock = SimClock()
    with pytest.raises(ZeroDivisionError):
        async with timeout(clock, FOREVER):
            raise ZeroDivisionError
    assert clock.timers == 0


async def test_no_time_left_expires_at_the_first_wait() -> None:
    clock = SimClock()

    async def body() -> None:
        async with timeout(clock, -1):
            await forever()

    task = asyncio.create_task(body())
    await clock.advance(0)
    with pytest.raises(TimeoutError):
        await task


async def test_timeout_works_on_the_real_clock() -> None:
    with pytest.raises(TimeoutError):
        async with timeout(RealClock(), 0.01):
            await forever()


def test_local_hour_follows_the_time_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    at_2023_11_14_22_13_utc = 1_700_000_000_999
    try:
        for zone, hour in (("UTC0", 22), ("XYZ-8", 6), ("XYZ+3", 19)):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert local_hour(at_2023_11_14_22_13_utc) == hour
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_a_sleep_for_the_rest_of_a_time_gets_past_it() -> None:
    """A difference of floats may leave less than a nanosecond."""
    clock = SimClock()
    until, slept = 7e-15, 0

    async def sleep_for_the_rest() -> None:
        nonlocal slept
        while slept < 10 and (left_s := until - clock.monotonic()) > 0:
            await clock.sleep(left_s)
            slept += 1

    sleeping = asyncio.create_task(sleep_for_the_rest())
    await clock.advance(1.0)
    await sleeping
    assert slept == 1


async def test_simulated_time_passes_until_the_condition_is_true() -> None:
    clock, rung = SimClock(), asyncio.Event()
    clock.call_later(1.7, rung.set)
    await clock.until(rung.is_set)
    assert clock.monotonic() == 2.0
    await clock.until(rung.is_set)
    assert clock.monotonic() == 2.0


async def test_a_condition_may_be_awaited() -> None:
    clock = SimClock()

    async def is_late() -> bool:
        await asyncio.sleep(0)
        return clock.monotonic() >= 3

    await clock.until(is_late, step_s=1)
    assert clock.monotonic() == 3.0
    await until(is_late)


async def test_simulated_time_stands_still_while_a_thread_is_at_work() -> None:
    clock, answers = SimClock(), [True] * 3 + [False] * 9
    clock.wait_for(lambda: answers.pop(0))
    await clock.until(lambda: len(answers) < 9)
    assert clock.monotonic() == 0.0


async def test_what_goes_on_for_ever_holds_simulated_time_up_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_clock, "THREADS_PATIENCE_S", 0.0)
    clock = SimClock()
    clock.wait_for(lambda: True)
    await clock.until(lambda: clock.monotonic() >= 1)


async def test_what_is_never_true_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_clock, "LAST_PATIENCE_S", 0.01)
    clock = SimClock()
    with pytest.raises(TimeoutError, match="within 2 s of the simulated clock"):
        await clock.until(lambda: False, within_s=2)
    assert clock.monotonic() == 2.0
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        await until(lambda: False, within_s=0.01)

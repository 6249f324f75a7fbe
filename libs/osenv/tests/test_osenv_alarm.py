"""Alarms ring once for each time they are set, on every clock and event loop, and not before their time."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

import osenv.clock
from osenv import RealClock, SimClock
from osenv.clock import Alarm, LoopAlarm, TimerFileAlarm, real_alarm

NEVER_S = 3_600.0
Runner = Callable[[Coroutine[Any, Any, None]], None]

needs_timer_files = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    return asyncio.run if request.param == "asyncio" else uvloop.run


@pytest.fixture(params=["best", "loop's"])
def make(request: pytest.FixtureRequest) -> Callable[[Callable[[], None]], Alarm]:
    if request.param == "best":
        return RealClock().alarm
    return lambda callback: LoopAlarm(asyncio.get_running_loop().call_later, callback)


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


async def rings(count: int, ring: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        for _ in range(count):
            await ring.wait()
            ring.clear()


def test_it_rings_once_each_time_it_is_set(run: Runner, make: Callable[[Callable[[], None]], Alarm]) -> None:
    async def scenario() -> None:
        ring, count = asyncio.Event(), 0

        def rung() -> None:
            nonlocal count
            count += 1
            ring.set()

        alarm = make(rung)
        for seconds in (0.0, 0.003, -1.0):
            alarm.set(NEVER_S)
            alarm.set(seconds)
            await rings(1, ring)
        alarm.set(0.0)
        alarm.cancel()
        other = make(ring.set)
        other.set(0.005)  # later than the cancelled one would have rung
        await rings(1, ring)
        alarm.close()
        alarm.close()
        other.close()
        assert count == 3

    run(scenario())


@pytest.mark.mechanism("D3")
@needs_timer_files
def test_a_timer_file_never_rings_early_and_leaves_no_file_behind(run: Runner) -> None:
    async def scenario() -> None:
        ring = asyncio.Event()
        before = open_files()
        alarm = real_alarm(ring.set)
        assert isinstance(alarm, TimerFileAlarm)
        for _ in range(20):
            begun = time.monotonic()
            alarm.set(0.0017)
            await rings(1, ring)
            assert time.monotonic() - begun >= 0.0017
        alarm.close()
        assert open_files() == before

    run(scenario())


async def test_a_machine_without_timer_files_has_alarms_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(osenv.clock, "_libc", object)
    ring = asyncio.Event()
    alarm = real_alarm(ring.set)
    assert isinstance(alarm, LoopAlarm)
    alarm.set(0.0)
    await rings(1, ring)
    alarm.close()


async def test_simulated_time_rings_to_the_nanosecond() -> None:
    clock, rung = SimClock(), []
    alarm = clock.alarm(lambda: rung.append(clock.monotonic()))
    alarm.set(5)
    alarm.set(1.5)
    await clock.advance(1.499999999)
    assert rung == []
    await clock.advance(10)
    assert rung == [1.5]
    alarm.close()
    assert clock.timers == 0

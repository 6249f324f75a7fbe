"""Waiting for conditions, in real time and in the time of a test."""

from __future__ import annotations

import asyncio

import pytest

from osenv import SimClock, sim_clock, until


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

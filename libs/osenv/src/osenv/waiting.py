"""Waiting for a condition that tells nobody when it becomes true: threads, sockets, fakes. For tests."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

POLL_INTERVAL_S = 0.001
YIELDS_FIRST = 20  # what needs the event loop only is there after a few turns of it


async def until(condition: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Return when `condition()`, or what it returns when awaited, is true.

    Waits in real time; for a clock that a test moves see SimClock.until. Raises TimeoutError after `within_s` seconds.
    """
    deadline = time.monotonic() + within_s
    turns = 0
    while not await is_met(condition):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"the condition did not become true within {within_s:g} s")
        turns += 1
        await asyncio.sleep(0 if turns <= YIELDS_FIRST else POLL_INTERVAL_S)


async def is_met(condition: Callable[[], object]) -> bool:
    """Whether `condition()`, or what it returns when awaited, is true."""
    answer = condition()
    return bool(await answer if inspect.isawaitable(answer) else answer)

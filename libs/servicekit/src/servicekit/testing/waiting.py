"""Waiting for a condition without looking at a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(is_met: Callable[[], bool]) -> None:
    """Let other tasks run until the condition is met; the test's own timeout ends it otherwise."""
    while not is_met():  # noqa: ASYNC110 - any condition, whoever brings it about
        await asyncio.sleep(0)

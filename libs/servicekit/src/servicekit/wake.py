"""A bell between who leaves work behind and the loop that does it.

Invariant: a ring between `reset` and `wait` is not lost: a loop resets, looks for work, and waits only then.
"""

from __future__ import annotations

import asyncio

from osenv import Clock
from osenv.clock import timeout


class Wake:
    """Rings when there is something to do."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def has_rung(self) -> bool:
        """Whether it rang since the last `reset`."""
        return self._event.is_set()

    def ring(self) -> None:
        """Let the loop look again, now or when it waits next."""
        self._event.set()

    def reset(self) -> None:
        """Forget what rang before."""
        self._event.clear()

    async def wait(self, clock: Clock, seconds_max: float) -> None:
        """Return when it rings, or after `seconds_max`: another process may have left work, and rings here for none."""
        try:
            async with timeout(clock, seconds_max):
                await self._event.wait()
        except TimeoutError:
            return

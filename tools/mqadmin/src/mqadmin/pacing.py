"""Not faster than an operator wants."""

from __future__ import annotations

from osenv import Clock


class Pace:
    """No more than `per_second` steps a second, evenly spread; None: no waiting."""

    def __init__(self, clock: Clock, per_second: float | None) -> None:
        self._clock = clock
        self._interval_s = 1 / per_second if per_second else 0.0
        self._next_at = clock.monotonic()

    async def wait(self) -> None:
        """Return when the next step may be made. A late step is not made up for."""
        left_s = self._next_at - self._clock.monotonic()
        if left_s > 0:
            await self._clock.sleep(left_s)
        self._next_at = max(self._next_at, self._clock.monotonic()) + self._interval_s

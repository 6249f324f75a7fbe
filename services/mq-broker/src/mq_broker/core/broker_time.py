"""The broker's own time: the wall clock at start plus monotonic time, never below the newest store timestamp.

Delays are measured in it; what is to be delivered at a time of the calendar follows the wall clock, and this knows how
far the two are apart.

Invariants: broker time never goes back, not while the process runs (the wall clock may step as it likes) and not below
what the log already says. Across a restart only the wall clock remains (docs/guarantees.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable

STEP_MS_MIN = 1_000  # clocks that are closer count as one: rounding, and a drift between two looks, are no steps
ROUNDING_MS = 1e-4  # more than floating point can be wrong by, less than anybody could notice


class BrokerTime:
    """Milliseconds since 1970, as the broker stamps and compares them (MISSION D4)."""

    def __init__(
        self,
        *,
        wall_ms: float,
        monotonic: Callable[[], float],
        newest_store_ms: int = 0,
        wall: Callable[[], float] | None = None,
    ) -> None:
        """`wall_ms` has its fraction: a clock that lags by half a millisecond delivers that much late.

        `wall` reads the wall clock later, in the same unit; without it both count as one.
        """
        self._monotonic, self._wall = monotonic, wall
        self._start = monotonic()
        self._start_ms = int(max(wall_ms, newest_store_ms))
        self._fraction_ms = max(wall_ms, newest_store_ms) - self._start_ms
        self._ahead_of_wall_ms = 0

    @property
    def ahead_of_wall_ms(self) -> int:
        """How far broker time is ahead of the wall clock, below 0 if it is behind; only a step changes it."""
        if self._wall is not None:
            ahead_ms = round(self._start_ms + self._elapsed_ms() - self._wall())
            if abs(ahead_ms - self._ahead_of_wall_ms) >= STEP_MS_MIN:
                self._ahead_of_wall_ms = ahead_ms if abs(ahead_ms) >= STEP_MS_MIN else 0
        return self._ahead_of_wall_ms

    def now_ms(self) -> int:
        """The time now, in whole milliseconds that have passed: what is due is compared with it."""
        return self._start_ms + int(self._elapsed_ms() + ROUNDING_MS)

    def stamp_ms(self) -> int:
        """The store timestamp of a record that is written now: rounded up, so that no delay after it is cut short."""
        return self._start_ms + math.ceil(self._elapsed_ms() - ROUNDING_MS)

    def seconds_until(self, due_ms: int) -> float:
        """How long until `due_ms`, not below zero, with a fraction of a millisecond more rather than less."""
        return max(0.0, (due_ms - self._start_ms - self._elapsed_ms()) / 1000)

    def _elapsed_ms(self) -> float:
        return self._fraction_ms + (self._monotonic() - self._start) * 1000

"""The broker's own time: the wall clock at start plus monotonic time, never below the newest store timestamp.

Invariant: it never goes back, not while the process runs (the wall clock may step as it likes) and not below what the
log already says. Across a restart only the wall clock remains (docs/guarantees.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable

ROUNDING_MS = 1e-4  # more than floating point can be wrong by, less than anybody could notice


class BrokerTime:
    """Milliseconds since 1970, as the broker stamps and compares them (MISSION D4)."""

    def __init__(self, *, wall_ms: float, monotonic: Callable[[], float], newest_store_ms: int = 0) -> None:
        """`wall_ms` has its fraction: a clock that lags by half a millisecond delivers that much late."""
        self._monotonic = monotonic
        self._start = monotonic()
        self._start_ms = int(max(wall_ms, newest_store_ms))
        self._fraction_ms = max(wall_ms, newest_store_ms) - self._start_ms

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

"""How many requests a caller may make: so many in a window that begins with the first of them.

Invariants: no caller is served more than `requests` times in one window; what is remembered is bounded, by the callers
of one window and by CALLERS_MAX. Kept in memory: each process counts for itself, and forgets at its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from osenv import Clock

CALLERS_MAX = 100_000  # about 20 MB; beyond it the oldest windows are forgotten


@dataclass(frozen=True, slots=True)
class RateLimit:
    """So many requests in so many seconds, for each caller. Raises ValueError."""

    requests: int
    window_s: int

    def __post_init__(self) -> None:
        if self.requests < 1 or self.window_s < 1:
            raise ValueError("requests and seconds are at least 1")


DEFAULT_RATE_LIMIT = RateLimit(600, 60)


def parse_rate_limit(text: str) -> RateLimit | None:
    """`600/60` is 600 requests in 60 seconds; `off` is None. Raises ValueError."""
    if text == "off":
        return None
    requests, slash, window_s = text.partition("/")
    if not slash or not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in (requests, window_s)):
        raise ValueError("allowed is requests/seconds, such as 600/60, or off")
    return RateLimit(int(requests), int(window_s))


@dataclass(frozen=True, slots=True)
class Standing:
    """What a caller has left. `reset_s` is never 0: the window is over when so many seconds have passed."""

    is_allowed: bool
    remaining: int
    reset_s: int


@dataclass(slots=True)
class _Window:
    ends_at: float
    used: int = 0


class RequestCounter:
    """Counts the requests of each caller."""

    def __init__(self, limit: RateLimit, clock: Clock, callers_max: int = CALLERS_MAX) -> None:
        self.limit = limit
        self._clock = clock
        self._callers_max = callers_max
        # All windows are equally long, so that they end in the order in which they were added.
        self._windows: dict[str, _Window] = {}

    @property
    def callers(self) -> int:
        """How many are remembered."""
        return len(self._windows)

    def count(self, caller: str) -> Standing:
        """Count one request, unless the caller has none left."""
        now = self._clock.monotonic()
        window = self._windows.get(caller)
        if window is None or window.ends_at <= now:
            window = self._new_window(caller, now)
        is_allowed = window.used < self.limit.requests
        if is_allowed:
            window.used += 1
        return Standing(is_allowed, self.limit.requests - window.used, math.ceil(window.ends_at - now))

    def _new_window(self, caller: str, now: float) -> _Window:
        self._windows.pop(caller, None)
        while self._windows:
            oldest = next(iter(self._windows))
            if self._windows[oldest].ends_at > now and len(self._windows) < self._callers_max:
                break
            del self._windows[oldest]
        window = self._windows[caller] = _Window(now + self.limit.window_s)
        return window

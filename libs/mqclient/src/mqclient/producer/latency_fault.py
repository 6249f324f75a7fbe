"""Which brokers are better left alone for a while, as their last sends show (MISSION P11, P12).

Invariants: a broker that nothing is known of is available; what is known only ever prolongs the time for which a broker
is left alone. RocketMQ 5 can also probe such brokers in the background (startDetectorEnable); that is not done here.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from osenv import Clock

# MISSION P12: from this latency on, the broker is left alone for so long.
LATENCY_MAX_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
NOT_AVAILABLE_DURATION_MS = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
ISOLATION_MS = 10_000  # what a failed send counts as


def not_available_duration_ms(latency_ms: float) -> int:
    """How long a broker is left alone after a send that took so long."""
    row = bisect_right(LATENCY_MAX_MS, latency_ms) - 1
    return NOT_AVAILABLE_DURATION_MS[row] if row >= 0 else 0


@dataclass(slots=True)
class _FaultItem:
    latency_ms: float
    available_from: float


class LatencyFaultTolerance:
    """What is known of each broker, by its name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._items: dict[str, _FaultItem] = {}
        self._which_item = 0

    def update(self, broker: str, latency_ms: float, *, isolation: bool = False) -> None:
        """A send took so long; one that failed leaves the broker alone as one that took ISOLATION_MS."""
        duration_ms = not_available_duration_ms(ISOLATION_MS if isolation else latency_ms)
        available_from = self._clock.monotonic() + duration_ms / 1000
        item = self._items.get(broker)
        if item is None:
            self._items[broker] = _FaultItem(latency_ms, available_from)
            return
        item.latency_ms = latency_ms
        item.available_from = max(item.available_from, available_from)

    def is_available(self, broker: str) -> bool:
        item = self._items.get(broker)
        return item is None or item.available_from <= self._clock.monotonic()

    def pick_one_at_least(self) -> str | None:
        """One of the better half of all brokers, in turns; None when nothing is known of any."""
        now = self._clock.monotonic()
        ranked = sorted(
            self._items,
            key=lambda broker: (
                self._items[broker].available_from > now,
                self._items[broker].latency_ms,
                self._items[broker].available_from,
            ),
        )
        if not ranked:
            return None
        half = len(ranked) // 2
        if half == 0:
            return ranked[0]
        self._which_item += 1
        return ranked[(self._which_item - 1) % half]

    def remove(self, broker: str) -> None:
        """Forget what is known of it."""
        self._items.pop(broker, None)

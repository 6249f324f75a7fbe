"""The delay levels: a table from level to delay (MISSION D1)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mqproto.properties import DELAY_MS_MAX

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ITEM = re.compile(r"(\d+)([smhd])")


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """Delays in milliseconds; level 1 is the first one. Not necessarily rising."""

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> DelayLevels:
        """From RocketMQ's messageDelayLevel: numbers with s, m, h or d. Raises ValueError with what is allowed."""
        delays = []
        for item in text.split():
            match = _ITEM.fullmatch(item)
            if match is None:
                raise ValueError(f"messageDelayLevel: {item!r} is not a number followed by s, m, h or d")
            delay_ms = int(match[1]) * _UNIT_MS[match[2]]
            if not 0 < delay_ms <= DELAY_MS_MAX:
                raise ValueError(f"messageDelayLevel: {item!r} is not above 0 and at most 40 days")
            delays.append(delay_ms)
        if not delays:
            raise ValueError("messageDelayLevel names no level")
        return cls(tuple(delays))

    @property
    def highest(self) -> int:
        """The last level's number."""
        return len(self.delays_ms)

    def effective(self, level: int) -> int:
        """The level that a message with this one gets: above the highest means the highest, as in RocketMQ."""
        return min(level, self.highest)

    def delay_ms(self, level: int) -> int:
        """The delay of `level`, from 1 to `highest`."""
        return self.delays_ms[level - 1]

    def due_ms(self, level: int, store_ms: int, due_then_ms: int) -> int:
        """When a record is due that was stored at `store_ms` and was then due at `due_then_ms` (MISSION D4).

        A table that has become shorter since then brings it forward; one that has become longer changes nothing.
        """
        if level > self.highest:  # the table has lost this level: the promise made then stands
            return due_then_ms
        return min(due_then_ms, store_ms + self.delay_ms(level))

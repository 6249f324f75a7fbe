"""Which delay level of the queue serves a remaining time.

Invariant: a message is late by less than the finest delay, and level 0 (no delay) is chosen only when nothing remains.
A message that arrives early is sent again for the rest, so that coarse levels add up to any time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# RocketMQ's messageDelayLevel; level 16 is the 30 minutes that a buyer has to pay.
DEFAULT_DELAYS_TEXT = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
PAYMENT_WINDOW_LEVEL = 16

_DELAY = re.compile(r"([1-9][0-9]*)([smhd])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """The delay of each level in milliseconds; level n is `delays_ms[n - 1]`. The delays need not be ascending."""

    delays_ms: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.delays_ms) < PAYMENT_WINDOW_LEVEL or min(self.delays_ms) < 1:
            raise ValueError(f"at least {PAYMENT_WINDOW_LEVEL} delay levels are needed, each of at least 1 ms")

    @property
    def payment_window_ms(self) -> int:
        """The delay of level 16."""
        return self.delays_ms[PAYMENT_WINDOW_LEVEL - 1]

    def choose(self, remaining_ms: int) -> int:
        """The level for a message that is wanted in `remaining_ms`: 0 when that is not in the future.

        Otherwise the longest delay that is late by less than the finest one: stopping short of the remaining time
        would end in a message of the finest delay all the same. Of equal delays, level 16.
        """
        if remaining_ms <= 0:
            return 0
        latest_ms = remaining_ms + min(self.delays_ms) - 1
        best_ms = max(delay_ms for delay_ms in self.delays_ms if delay_ms <= latest_ms)
        if best_ms == self.payment_window_ms:
            return PAYMENT_WINDOW_LEVEL
        return self.delays_ms.index(best_ms) + 1


def parse_delay_levels(text: str) -> DelayLevels:
    """The levels of a text such as `1s 5s 10s 30s 1m ... 2h`. Raises ValueError with the part that is wrong."""
    delays_ms = []
    for part in text.split():
        match = _DELAY.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not a delay such as 10s, 5m, 2h or 1d")
        delays_ms.append(int(match[1]) * _UNIT_MS[match[2]])
    if len(delays_ms) < PAYMENT_WINDOW_LEVEL:
        raise ValueError(f"{len(delays_ms)} levels, at least {PAYMENT_WINDOW_LEVEL} are needed")
    return DelayLevels(tuple(delays_ms))


def default_delay_levels(payment_window_ms: int) -> DelayLevels:
    """RocketMQ's levels with level 16 as long as the payment window."""
    delays_ms = list(parse_delay_levels(DEFAULT_DELAYS_TEXT).delays_ms)
    delays_ms[PAYMENT_WINDOW_LEVEL - 1] = payment_window_ms
    return DelayLevels(tuple(delays_ms))

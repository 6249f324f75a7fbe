"""The broker's 18 delay levels as text, with a level 16 of one's own: the time that a buyer has to pay."""

from __future__ import annotations

from orders.domain.delay_levels import DEFAULT_DELAYS_TEXT, PAYMENT_WINDOW_LEVEL, parse_delay_levels

__all__ = ["PAYMENT_WINDOW_LEVEL", "REAL_DELAY_LEVELS", "payment_window_ms", "with_payment_window"]

REAL_DELAY_LEVELS = DEFAULT_DELAYS_TEXT


def with_payment_window(delay: str) -> str:
    """RocketMQ's levels with level 16 as long as `delay`, such as 10s."""
    delays = REAL_DELAY_LEVELS.split()
    delays[PAYMENT_WINDOW_LEVEL - 1] = delay
    return " ".join(delays)


def payment_window_ms(delay_levels: str) -> int:
    """How long level 16 is. Raises ValueError for a text that is not at least 16 delays."""
    return parse_delay_levels(delay_levels).payment_window_ms

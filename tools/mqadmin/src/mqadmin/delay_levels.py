"""How a delay level of a broker is shown, and its timer for messages with a time of their own."""

from __future__ import annotations

from typing import Any

from mqadmin.times import duration_text, time_fields
from mqclient import DelayLevelStatus

TIMER_LEVEL = -1


def level_name(level: DelayLevelStatus) -> str:
    """The level's number, or `timer`."""
    return "timer" if level.level == TIMER_LEVEL else str(level.level)


def delay_text(level: DelayLevelStatus) -> str | None:
    """The level's delay; None for the timer, where each message has its own, and for a level that is none any more."""
    return duration_text(level.delay_ms) if level.delay_ms else None


def level_fields(level: DelayLevelStatus) -> dict[str, Any]:
    """The level in a JSON document."""
    late = bool(level.delivered)
    return {
        "level": level.level,
        "delay_ms": level.delay_ms or None,
        "waiting": level.waiting,
        **time_fields("next_due_at", level.next_due_timestamp_ms),
        "delivered": level.delivered,
        "lateness_p50_ms": level.lateness_p50_ms if late else None,
        "lateness_p99_ms": level.lateness_p99_ms if late else None,
        "lateness_max_ms": level.lateness_max_ms if late else None,
    }

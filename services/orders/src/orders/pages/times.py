"""Moments and remaining times as people read them. The server knows no visitor's time zone and says UTC; the script on
the page turns moments into the visitor's own time.
"""

from __future__ import annotations

from datetime import UTC, datetime

from orders.pages.language import Language

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def format_moment(at_ms: int, language: Language) -> str:
    """`22 Nov 2026, 16:15:10 UTC` or `2026年11月22日 16:15:10 UTC`."""
    at = _utc(at_ms)
    clock = f"{at.hour:02}:{at.minute:02}:{at.second:02} UTC"
    if language is Language.CHINESE:
        return f"{at.year}年{at.month}月{at.day}日 {clock}"
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}, {clock}"


def machine_moment(at_ms: int) -> str:
    """For the `datetime` attribute: `2026-11-22T16:15:10.000Z`."""
    return _utc(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def remaining_seconds(expires_at_ms: int, now_ms: int) -> int:
    """Whole seconds that are left, begun ones counted; 0 when the time is over."""
    return max(0, -((now_ms - expires_at_ms) // 1000))


def format_remaining(seconds: int) -> str:
    """`09:20` (MISSION X2); from an hour on `1:09:20`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)

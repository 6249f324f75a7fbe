"""How long something is to wait: a length of time, or a moment, in whole milliseconds and for 40 days at most.

Invariant: a moment on the wire is never before the one that was asked for.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mqproto.properties import DELAY_MS_MAX

_EPOCH = datetime.fromtimestamp(0, UTC)
_MS = timedelta(milliseconds=1)
_DAYS_MAX = timedelta(milliseconds=DELAY_MS_MAX).days


class IllegalDelayError(ValueError):
    """Nobody waits like that; the sentence says what is allowed."""


def checked_delay_ms(delay_ms: object) -> int:
    """The same. Raises IllegalDelayError unless it is a whole number of milliseconds, from 1 to 40 days."""
    if type(delay_ms) is not int or not 0 < delay_ms <= DELAY_MS_MAX:
        raise IllegalDelayError(
            f"delay_ms is {delay_ms!r}; allowed are 1 to {DELAY_MS_MAX:,} milliseconds ({_DAYS_MAX} days)"
        )
    return delay_ms


def check_deliver_at(deliver_at: object) -> None:
    """Raises IllegalDelayError unless it is a time that says of which zone it is."""
    if not isinstance(deliver_at, datetime):
        raise IllegalDelayError(f"deliver_at has to be a datetime, not {type(deliver_at).__name__}")
    if deliver_at.utcoffset() is None:
        raise IllegalDelayError(
            f"deliver_at is {deliver_at.isoformat()}, and nobody knows in which time zone; give it a tzinfo"
        )


def deliver_timestamp_ms(deliver_at: datetime) -> int:
    """Milliseconds since 1970, rounded up; 0 for what is before. Of a time that `check_deliver_at` has let through."""
    return max(0, -((_EPOCH - deliver_at) // _MS))


def check_near_enough(deliver_at: datetime, now_ms: int) -> None:
    """Raises IllegalDelayError for a moment that is more than 40 days after `now_ms` (since 1970)."""
    if deliver_timestamp_ms(deliver_at) - now_ms > DELAY_MS_MAX:
        raise IllegalDelayError(f"deliver_at is {deliver_at.isoformat()}, more than {_DAYS_MAX} days from now")

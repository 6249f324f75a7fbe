"""Days, hours and minutes in UTC, whatever the session's time zone is."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def utc_day(at: str | Column) -> Column:
    """The date of a timestamp."""
    return F.date_from_unix_date(F.floor(F.unix_millis(at) / DAY_MS).cast("int"))


def start_of(at: str | Column, period_ms: int) -> Column:
    """When the period began in which a timestamp lies; periods are counted from 1970."""
    at_ms = F.unix_millis(at)
    return F.timestamp_millis(at_ms - F.pmod(at_ms, F.lit(period_ms)))


def elapsed_ms(since: str | Column, until: str | Column) -> Column:
    """The milliseconds between two timestamps; negative when `until` is the earlier one."""
    return F.unix_millis(until) - F.unix_millis(since)

"""Times as an operator writes and reads them; inside they are milliseconds since 1970-01-01 UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

ALLOWED = "now, milliseconds since 1970, yyyy-MM-dd#HH:mm:ss:SSS, or ISO 8601 such as 2026-01-31T12:00:00Z"

_EPOCH = datetime.fromtimestamp(0, UTC)
_ROCKETMQ = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})")


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970. A time without a zone is of this machine's, as in RocketMQ. Raises BadParameter."""
    text = text.strip()
    if text == "now":
        return now_ms
    if text.isascii() and text.isdigit():
        return int(text)
    match = _ROCKETMQ.fullmatch(text)
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{match[2]}.{match[3]}" if match else text)
        return round((moment if moment.tzinfo else moment.astimezone()).timestamp() * 1_000)
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(f"{text!r} is no time; write {ALLOWED}") from None


def parse_moment(text: str, now_ms: int) -> datetime:
    """As `parse_time`, for calls that take a datetime. Raises BadParameter."""
    try:
        return _EPOCH + timedelta(milliseconds=parse_time(text, now_ms))
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is no time; write {ALLOWED}") from None


def iso_time(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_text(ms: int, *, beside_ms: int | None = None) -> str:
    """For people, and for `parse_time`; the date is left out beside a time of the same day. `-` for 0."""
    if not ms:
        return "-"
    date, _, time = iso_time(ms).partition("T")
    if beside_ms is not None and iso_time(beside_ms).startswith(date):
        return time
    return f"{date} {time}"


def time_fields(name: str, ms: int) -> dict[str, str | int | None]:
    """A time in a JSON document: `name` as ISO 8601 and `name_ms` as a number; null for 0, which is no time."""
    return {name: iso_time(ms) if ms else None, f"{name}_ms": ms or None}


def duration_text(ms: int) -> str:
    """A length of time for people, in the unit that fits: `14 ms`, `2.5 s`, `30 min`, `2 h`."""
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= unit_ms:
            return f"{ms / unit_ms:.3g} {unit}"
    return f"{ms} ms"

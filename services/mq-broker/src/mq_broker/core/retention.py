"""When the oldest file of the log may go, and when writes have to stop (MISSION E1, E2, E4).

Invariants: a file goes because it has expired or because the disk is too full, never because it was consumed; once
writes are refused they stay refused until there is room again.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

HOUR_MS = 3_600_000


class GuardMode(enum.Enum):
    """What happens before messages are deleted that a group has not consumed yet."""

    OFF = "OFF"
    WARN = "WARN"
    REFUSE = "REFUSE"


class Reason(enum.Enum):
    """Why a file goes."""

    EXPIRED = "expired"
    FORCED = "the disk is too full"


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """RocketMQ's settings and defaults; shares of the disk are 0 to 1."""

    reserved_hours: int = 72  # E1
    delete_hours: frozenset[int] = frozenset({4})  # E2, deleteWhen
    normal_share: float = 0.75  # E4: above it expired files go at any hour
    forced_share: float = 0.85  # E4: from here on files go before they expire; writes resume at or below it
    refuse_share: float = 0.90  # E4: from here on writes are refused
    clean_forcibly: bool = True
    guard: GuardMode = GuardMode.WARN


def reason_to_delete(
    options: RetentionOptions, *, newest_store_ms: int, now_ms: int, local_hour: int, used_share: float
) -> Reason | None:
    """Why the file whose newest message was stored at `newest_store_ms` goes now, or None when it stays."""
    if options.clean_forcibly and used_share >= options.forced_share:
        return Reason.FORCED
    expired = now_ms - newest_store_ms >= options.reserved_hours * HOUR_MS
    if expired and (local_hour in options.delete_hours or used_share > options.normal_share):
        return Reason.EXPIRED
    return None


def worth_deleting(file_bytes: int, waiting_bytes: Sequence[int]) -> int:
    """How many of the oldest files gain the disk at least as much as is written for that; 0: none do, however many go.

    `waiting_bytes` tells for each file, the oldest first, what has to be written again before it goes. So all that is
    ever written for this is less than what it gains, and no message is written again and again for nothing.
    """
    written = 0
    for count, waiting in enumerate(waiting_bytes, 1):
        written += waiting
        if 2 * written <= count * file_bytes:
            return count
    return 0


@dataclass
class WriteGate:
    """Whether writes are accepted, by how full the disk is and by what cannot be cleaned."""

    options: RetentionOptions
    used_share: float = 0.0
    full: bool = False
    blocked_by: str = ""  # why the oldest file cannot go although it has to

    def measured(self, used_share: float) -> None:
        """The disk's used share, 0 to 1."""
        self.used_share = used_share
        if used_share >= self.options.refuse_share:
            self.full = True
        elif used_share <= self.options.forced_share:
            self.full = False

    @property
    def refusal(self) -> str | None:
        """The sentence for those who want to write, or None when they may."""
        if self.blocked_by:
            return self.blocked_by
        if self.full:
            limit = self.options.forced_share
            return f"the disk is {self.used_share:.0%} full; writes are accepted again at {limit:.0%}"
        return None


def parse_delete_when(text: str) -> frozenset[int]:
    """Hours of the day from RocketMQ's `04` or `04;16`. Raises ValueError."""
    hours = [part.strip() for part in text.split(";")]
    if not all(hour.isascii() and hour.isdigit() and int(hour) < 24 for hour in hours):
        raise ValueError(f"deleteWhen={text!r}: write hours of the day from 00 to 23, separated by ;")
    return frozenset(map(int, hours))

"""The findings of a look into a store: differences, which are wrong, and notes, which are only worth knowing."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from mq_broker.store.log_scan import Damage

SHOWN_MAX = 100

DIFFERENCE, NOTE = "difference", "note"
VERSION, LOG, QUEUE, INDEX, CHECKPOINT, WATERMARK, CONFIG, TIMER = (
    "version",
    "commit log",
    "consume queue",
    "index",
    "checkpoint",
    "watermark",
    "config",
    "timer",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about one part of the store."""

    kind: str
    part: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.kind}: {self.part}: {self.text}"


class Findings:
    """Counts what is found and shows the first `SHOWN_MAX` differences and as many notes."""

    def __init__(self, show: Callable[[Finding], None]) -> None:
        self._show = show
        self._counts = {DIFFERENCE: 0, NOTE: 0}

    @property
    def differences(self) -> int:
        """How many there are, shown or not."""
        return self._counts[DIFFERENCE]

    @property
    def hidden(self) -> int:
        """How many were counted and not shown."""
        return sum(max(0, count - SHOWN_MAX) for count in self._counts.values())

    def difference(self, part: str, text: str) -> None:
        """Something is not as it has to be."""
        self._add(Finding(DIFFERENCE, part, text))

    def note(self, part: str, text: str) -> None:
        """Something is as it may be, and worth a line."""
        self._add(Finding(NOTE, part, text))

    def judge(self, part: str, text: str, *, allowed: bool) -> None:
        """A note when the store's state explains it, else a difference."""
        (self.note if allowed else self.difference)(part, text)

    def _add(self, finding: Finding) -> None:
        self._counts[finding.kind] += 1
        if self._counts[finding.kind] <= SHOWN_MAX:
            self._show(finding)


class DamageMap:
    """The damaged stretches of the log, 16 bytes for each. Invariant: in order, without overlap."""

    def __init__(self) -> None:
        self._begins, self._ends = array("q"), array("q")

    def add(self, damage: Damage) -> None:
        """A stretch behind the ones before."""
        self._begins.append(damage.log_offset)
        self._ends.append(damage.end)

    def touches(self, log_offset: int) -> bool:
        """Whether this offset is damaged."""
        index = bisect_right(self._begins, log_offset) - 1
        return index >= 0 and log_offset < self._ends[index]

    def any_between(self, begin: int, end: int) -> bool:
        """Whether a stretch begins in this range."""
        index = bisect_right(self._begins, begin - 1)
        return index < len(self._begins) and self._begins[index] < end

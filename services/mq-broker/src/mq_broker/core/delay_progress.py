"""How far each delay level has been delivered (MISSION D6).

Invariant: progress never goes back. It is kept in delayOffset.json, and each delivered record says in the log which
delayed record it came from, so that whatever the file has lost is found again.
"""

from __future__ import annotations

from typing import Any


class DelayProgress:
    """Queue offset of the next delayed record by level."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self.data_version = 0

    def next_offset(self, level: int) -> int:
        """The first offset of the level's queue that has not been delivered."""
        return self._next.get(level, 0)

    def delivered(self, level: int, offset: int) -> None:
        """The record at `offset` of the level's queue has been delivered."""
        if offset + 1 > self.next_offset(level):
            self._next[level] = offset + 1
            self.data_version += 1

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's delayOffset.json."""
        table = {str(level): offset for level, offset in sorted(self._next.items())}
        return {"dataVersion": {"counter": self.data_version}, "offsetTable": table}

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what delayOffset.json says. Raises KeyError, TypeError or ValueError if not of that form."""
        for level, offset in document["offsetTable"].items():
            self.delivered(int(level), int(offset) - 1)
        self.data_version = document["dataVersion"]["counter"]

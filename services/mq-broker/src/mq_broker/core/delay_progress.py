"""How far each delay level has been delivered (MISSION D6).

A level is delivered in the order of its queue. What was carried over (CARRIED: messages that had to leave a file of the
log before they were due) is delivered in the order of due times, so its progress may have gaps.

Invariant: progress never goes back. It is kept in delayOffset.json, and each delivered record says in the log which
delayed record it came from, so that whatever the file has lost is found again.
"""

from __future__ import annotations

from typing import Any

from mq_broker.core import documents as tables

CARRIED = 0  # stands for a level; the levels themselves begin at 1


class DelayProgress:
    """Queue offset of the next delayed record by level."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._carried_ahead: set[int] = set()  # carried records that were delivered before an earlier one
        self.data_version = 0

    def next_offset(self, level: int) -> int:
        """The first offset of the level's queue that has not been delivered."""
        return self._next.get(level, 0)

    def delivered(self, level: int, offset: int) -> None:
        """The record at `offset` of the level's queue has been delivered, or carried over."""
        if level == CARRIED:
            self._carried_delivered(offset)
        elif offset + 1 > self.next_offset(level):
            self._next[level] = offset + 1
            self.data_version += 1

    def is_delivered(self, level: int, offset: int) -> bool:
        """Whether the record at `offset` of the level's queue needs nothing any more."""
        return offset < self.next_offset(level) or (level == CARRIED and offset in self._carried_ahead)

    def _carried_delivered(self, offset: int) -> None:
        if not self.is_delivered(CARRIED, offset):
            self._carried_ahead.add(offset)
            following = self.next_offset(CARRIED)
            while following in self._carried_ahead:
                self._carried_ahead.remove(following)
                following += 1
            self._next[CARRIED] = following
            self.data_version += 1

    def skip_carried(self, offset: int) -> None:
        """Nothing before `offset` of the carried queue is left in the log."""
        for one in range(self.next_offset(CARRIED), offset):
            self._carried_delivered(one)

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's delayOffset.json."""
        table = {str(level): offset for level, offset in sorted(self._next.items()) if level != CARRIED}
        carried = {"next": self.next_offset(CARRIED), "ahead": sorted(self._carried_ahead)}
        return {"dataVersion": {"counter": self.data_version}, "offsetTable": table, "carried": carried}

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what delayOffset.json says. Raises KeyError, TypeError or ValueError if not of that form."""
        for level, offset in tables.table(document, "offsetTable").items():
            self.delivered(int(level), int(offset) - 1)
        carried: dict[str, Any] = (
            tables.table(document, "carried") if "carried" in document else {"next": 0, "ahead": []}
        )
        self._next[CARRIED] = int(carried["next"])
        self._carried_ahead = {int(offset) for offset in carried["ahead"]}
        self.data_version = int(tables.table(document, "dataVersion")["counter"])

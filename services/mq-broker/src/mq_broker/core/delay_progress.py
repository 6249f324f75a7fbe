"""Which waiting records are done: delivered, carried over, taken back, or replaced (MISSION D6).

Each queue of waiting records has a number: the delay levels from 1 up, TIMER for records with a due time of their own,
and CARRIED for the queue in which earlier versions kept what the timer has now.

Invariant: what is done stays done. It is kept in delayOffset.json, and each record that ends a wait says in the log
which one, so that whatever the file has lost is found again.
"""

from __future__ import annotations

from typing import Any

from mq_broker.core import documents as tables
from mq_broker.core.offset_set import OffsetSet
from mqproto.names import CARRIED_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

TIMER, CARRIED = -1, 0  # stand for levels; the levels themselves begin at 1
_OTHER_QUEUES = {TIMER: (TIMER_TOPIC, 0), CARRIED: (CARRIED_TOPIC, 0)}
_OTHER_LEVELS = {topic: level for level, (topic, _) in _OTHER_QUEUES.items()}


def waiting_queue(level: int) -> tuple[str, int]:
    """Topic and queue id of the queue with this number."""
    return _OTHER_QUEUES.get(level) or (SCHEDULE_TOPIC, level - 1)


def level_of(topic: str, queue_id: int) -> int | None:
    """The inverse; None for a queue that holds no waiting records."""
    if topic == SCHEDULE_TOPIC:
        return queue_id + 1
    return _OTHER_LEVELS.get(topic)


class DelayProgress:
    """The done queue offsets of each queue of waiting records."""

    def __init__(self) -> None:
        self._done: dict[int, OffsetSet] = {}
        self.data_version = 0

    def next_offset(self, level: int) -> int:
        """The first offset of the queue that is not done."""
        return self._done[level].next if level in self._done else 0

    def done_ahead(self, level: int) -> int:
        """How many records behind that one are done."""
        return self._done[level].count_ahead if level in self._done else 0

    def is_done(self, level: int, offset: int) -> bool:
        """Whether the record at `offset` of the queue needs nothing any more."""
        return level in self._done and offset in self._done[level]

    def done(self, level: int, offset: int) -> None:
        """The record at `offset` of the queue waits no more."""
        self.data_version += self._done.setdefault(level, OffsetSet()).add(offset)

    def done_below(self, level: int, offset: int) -> None:
        """Nothing before `offset` of the queue waits any more, or is left in the log."""
        self.data_version += self._done.setdefault(level, OffsetSet()).add_below(offset)

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's delayOffset.json, with what it has no place for beside its table."""
        table = {str(level): done.next for level, done in sorted(self._done.items()) if level > CARRIED}
        others = {str(level): done.next for level, done in sorted(self._done.items()) if level <= CARRIED}
        ahead = {str(level): done.to_json() for level, done in sorted(self._done.items()) if done.count_ahead}
        return {
            "dataVersion": {"counter": self.data_version},
            "offsetTable": table,
            "otherOffsets": others,
            "doneAhead": ahead,
        }

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what delayOffset.json says. Raises KeyError, TypeError or ValueError if not of that form."""
        version = int(tables.table(document, "dataVersion")["counter"])
        self._done = done_of(document)
        self.data_version = version


def done_of(document: dict[str, Any]) -> dict[int, OffsetSet]:
    """What the document says is done, by the number of the queue. Raises KeyError, TypeError or ValueError."""
    following = dict(tables.table(document, "offsetTable"))
    if "otherOffsets" in document:
        following |= tables.table(document, "otherOffsets")
    ahead = dict(tables.table(document, "doneAhead")) if "doneAhead" in document else {}
    done = {
        int(level): OffsetSet.from_json(int(following.get(level, 0)), ahead.get(level, {}))
        for level in following.keys() | ahead.keys()
    }
    if "carried" in document:  # as earlier versions wrote it
        carried = tables.table(document, "carried")
        done[CARRIED] = OffsetSet(int(carried["next"]))
        for offset in carried["ahead"]:
            done[CARRIED].add(int(offset))
    return done

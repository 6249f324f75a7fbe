"""How far each group has consumed each queue (MISSION C20, C22).

Invariant: an offset is never beyond the end of its queue; what was never committed is absent, not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mq_broker.core import documents as tables

GROUP_SEPARATOR = "@"  # the key in consumerOffset.json is topic@group, as in RocketMQ


class ConsumerOffsets:
    """Offsets by topic, group and queue id."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.data_version = 0

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, or None when there is none."""
        return self._offsets.get((topic, group), {}).get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember `offset` as the next one to consume."""
        queues = self._offsets.setdefault((topic, group), {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.data_version += 1

    def topics_of(self, group: str) -> list[str]:
        """The topics for which the group has an offset, sorted."""
        return sorted(topic for topic, one in self._offsets if one == group)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have an offset in the topic, sorted."""
        return sorted(group for one, group in self._offsets if one == topic)

    def forget_topic(self, topic: str) -> None:
        """The topic is gone, and with it what anybody had consumed of it."""
        self._forget([key for key in self._offsets if key[0] == topic])

    def forget_below(self, topic: str, first_offset: Callable[[int], int]) -> None:
        """Of each queue of the topic, forget what lies below its first offset: nobody can go on there."""
        for (one, _), queues in self._offsets.items():
            stale = [queue_id for queue_id, offset in queues.items() if offset < first_offset(queue_id)]
            for queue_id in stale if one == topic else ():
                del queues[queue_id]
                self.data_version += 1

    def forget_group(self, group: str) -> None:
        """The group begins anew everywhere."""
        self._forget([key for key in self._offsets if key[1] == group])

    def _forget(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self._offsets[key]
        self.data_version += len(keys)

    def all(self) -> Iterator[tuple[str, str, int, int]]:
        """Every committed offset: (group, topic, queue id, offset)."""
        for (topic, group), queues in self._offsets.items():
            for queue_id, offset in queues.items():
                yield group, topic, queue_id, offset

    def clamp(self, max_offset: Callable[[str, int], int]) -> list[tuple[str, str, int, int, int]]:
        """Bring back what lies beyond its queue's end, as after a lost tail.

        Returns what was changed: (group, topic, queue id, offset before, offset now).
        """
        changed = []
        for (topic, group), queues in self._offsets.items():
            for queue_id, offset in queues.items():
                end = max_offset(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    changed.append((group, topic, queue_id, offset, end))
        self.data_version += len(changed)
        return changed

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's consumerOffset.json."""
        table = {
            f"{topic}{GROUP_SEPARATOR}{group}": {str(queue_id): offset for queue_id, offset in sorted(queues.items())}
            for (topic, group), queues in sorted(self._offsets.items())
        }
        return {"dataVersion": {"counter": self.data_version}, "offsetTable": table}

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what consumerOffset.json says. Raises KeyError, TypeError or ValueError if not of that form."""
        found = tables.table(document, "offsetTable")
        for name in found:
            queues = tables.table(found, name)
            topic, separator, group = name.partition(GROUP_SEPARATOR)
            if not separator:
                raise ValueError(f"{name!r} is not topic@group")
            self._offsets[topic, group] = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
        self.data_version = int(tables.table(document, "dataVersion")["counter"])

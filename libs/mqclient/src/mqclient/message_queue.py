"""One queue of a topic, as the whole cluster names it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class MessageQueue(NamedTuple):
    """Ordered by topic, broker name and number, as every member of a group has to sort them (MISSION C13)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


def by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """The queues of each broker, by its name, both in the order in which they come."""
    parts: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        parts[queue.broker_name].append(queue)
    return parts

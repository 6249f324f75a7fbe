"""One queue of a topic, as the whole cluster names it."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """Ordered by topic, broker name and number, as every member of a group has to sort them (MISSION C13)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"

"""One queue of a topic, as the whole cluster names it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

QUEUES_PER_REQUEST_MAX = 16_384  # what brokers take in one request


class MessageQueue(NamedTuple):
    """Ordered by topic, broker name and number, as every member of a group has to sort them (MISSION C13)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


def by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, list[MessageQueue]]]:
    """The queues of each broker with its name, both in the order in which they come; as many as fit one request.

    A broker whose queues do not fit one request occurs several times.
    """
    of_brokers: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        of_brokers[queue.broker_name].append(queue)
    return [
        (name, found[begin : begin + QUEUES_PER_REQUEST_MAX])
        for name, found in of_brokers.items()
        for begin in range(0, len(found), QUEUES_PER_REQUEST_MAX)
    ]

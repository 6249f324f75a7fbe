"""Which queue takes the next message (MISSION P9, P10, P13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mqclient.message import Message
from mqclient.message_queue import MessageQueue
from osenv import Rng

# Picks one of the queues for a message and the argument that `send` was given; a queue that is gone is an error.
MessageQueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


class RoundRobin:
    """One index per topic, starting anywhere, so that many producers do not all begin with the same queue."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._indexes: dict[str, int] = {}

    def choose(self, topic: str, queues: Sequence[MessageQueue], failed_broker: str | None = None) -> MessageQueue:
        """The next of `queues`: never one of `failed_broker` while another broker has one."""
        index = self._indexes.get(topic)
        if index is None:
            index = self._rng.randrange(0, len(queues))
        if failed_broker is not None:
            for step in range(len(queues)):
                if queues[(index + step) % len(queues)].broker_name != failed_broker:
                    index += step
                    break
        self._indexes[topic] = index + 1
        return queues[index % len(queues)]

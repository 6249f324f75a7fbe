"""Which queue takes the next message (MISSION P9-P11, P13, P14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mqclient.errors import MessageRejectedError
from mqclient.message import Message, MessageQueue
from mqclient.producer.latency_fault import LatencyFaultTolerance
from osenv import Rng

# Picks one of the queues for a message and the argument that `send` was given; a queue that is gone is an error.
MessageQueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]
# The same for one message, with everything else known.
FixedChoice = Callable[[Sequence[MessageQueue]], MessageQueue]


class QueueChoice:
    """One index per topic, starting anywhere, so that many producers do not all begin with the same queue.

    With `fault_tolerance`, brokers that are better left alone are passed over.
    """

    def __init__(self, rng: Rng, fault_tolerance: LatencyFaultTolerance | None = None) -> None:
        self._rng = rng
        self._fault_tolerance = fault_tolerance
        self._indexes: dict[str, int] = {}

    def choose(self, topic: str, queues: Sequence[MessageQueue], failed_broker: str | None = None) -> MessageQueue:
        """The next of `queues`: never one of `failed_broker` while another broker has one."""
        index = self._indexes.get(topic)
        if index is None:
            index = self._rng.randrange(0, len(queues))
        if self._fault_tolerance is not None:
            index += self._steps_to_available(self._fault_tolerance, queues, index, failed_broker)
        elif failed_broker is not None:
            index += _steps(queues, index, lambda broker: broker != failed_broker) or 0
        self._indexes[topic] = index + 1
        return queues[index % len(queues)]

    def _steps_to_available(
        self, tolerance: LatencyFaultTolerance, queues: Sequence[MessageQueue], index: int, failed_broker: str | None
    ) -> int:
        """How far the chosen queue is from the one whose turn it is."""
        steps = _steps(queues, index, lambda broker: broker != failed_broker and tolerance.is_available(broker))
        if steps is None:
            steps = _steps(queues, index, tolerance.is_available)
        if steps is None and (least_bad := tolerance.pick_one_at_least()) is not None:
            steps = _steps(queues, index, lambda broker: broker == least_bad)
            if steps is None:  # it has no queue that can be written
                tolerance.remove(least_bad)
        return steps or 0


def _steps(queues: Sequence[MessageQueue], index: int, takes: Callable[[str], bool]) -> int | None:
    """How far it is from the queue at `index` to the next one whose broker `takes` messages."""
    count = len(queues)
    return next((step for step in range(count) if takes(queues[(index + step) % count].broker_name)), None)


def by_selector(selector: MessageQueueSelector, message: Message, argument: Any) -> FixedChoice:
    """The selector's choice. Raises MessageRejectedError when it fails, or returns no queue that it was given."""

    def choose(queues: Sequence[MessageQueue]) -> MessageQueue:
        try:
            chosen = selector(queues, message, argument)
        except Exception as error:
            raise MessageRejectedError(f"the selector failed: {error!r}") from error
        if chosen not in queues:
            raise MessageRejectedError(f"the selector returned {chosen!r}, which is not one of the queues it was given")
        return chosen

    return choose


def always(queue: MessageQueue) -> FixedChoice:
    """This queue, whatever the route says of it."""
    return lambda _: queue

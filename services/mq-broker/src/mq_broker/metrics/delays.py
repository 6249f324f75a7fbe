"""Messages that wait, by delay level; -1 is the timer."""

from __future__ import annotations

from collections.abc import Iterable

from mq_broker.metrics.instruments import Attributes, Instrument, Point
from mq_broker.processor.broker import Broker

# Upper bounds of the classes, in seconds: from what a delivery takes to what somebody notices.
LATENESS_BOUNDS_S = (0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)


def of_level(level: int) -> Attributes:
    """The attributes of what a level has."""
    return {"hourglass.delay.level": level}


def _waiting(broker: Broker) -> Iterable[Point]:
    return [(queue.waiting, of_level(queue.level)) for queue in broker.delay.queues]


GAUGES = (Instrument("hourglass.delay.waiting", "{message}", "Messages that wait", _waiting),)

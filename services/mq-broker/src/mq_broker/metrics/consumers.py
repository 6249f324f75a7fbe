"""How far consumer groups are behind, and what they have given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mq_broker.metrics.instruments import Instrument, Point
from mq_broker.processor.broker import Broker
from telemetry import names


def _lag(broker: Broker) -> Iterable[Point]:
    """By group and topic, over the queues in which the group has begun; a slave leaves it to its master to tell."""
    if broker.store.follows:
        return []
    lags = Counter[tuple[str, str]]()
    for group, topic, queue_id, progress in broker.consumer_offsets.snapshot():
        first, end = broker.store.queue_bounds(topic, queue_id)
        lags[group, topic] += max(0, end - max(first, progress.offset) - progress.finished_beyond)
    return [
        (lag, {names.CONSUMER_GROUP_NAME: group, names.DESTINATION_NAME: topic}) for (group, topic), lag in lags.items()
    ]


def _dead_letters(broker: Broker) -> Iterable[Point]:
    counts = broker.send_back.dead_letters.copy()
    return [(count, {names.CONSUMER_GROUP_NAME: group}) for group, count in counts.items()]


GAUGES = (Instrument("hourglass.consumer.lag", "{message}", "Messages that a group has not finished", _lag),)
COUNTERS = (Instrument("hourglass.dead_letters", "{message}", "Messages that a group has given up", _dead_letters),)

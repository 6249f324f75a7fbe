"""From options to offsets: where each queue's read begins and ends (MISSION Y1)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from mqclient import MessageQueue
from pyspark_mq.errors import DataLossError, OptionError
from pyspark_mq.options import EARLIEST_OFFSET, LATEST_OFFSET, NoMatchStrategy, Position, PositionKind
from pyspark_mq.partition_reader import LOSS_ADVICE, lost_range
from pyspark_mq.queue_bounds import Bounds, QueueBounds

logger = logging.getLogger("pyspark_mq.planning")

BoundsOf = Mapping[MessageQueue, Bounds]


def beginning(position: Position, bounds: BoundsOf, cluster: QueueBounds) -> dict[MessageQueue, int]:
    """The first offset to read of each queue, as the user has said; it may not be there any more.

    Raises OptionError when the option does not fit the queues, and what the question for a time raises.
    """
    found = _places(position, bounds, cluster)
    if position.is_by_time and position.strategy is NoMatchStrategy.ERROR:
        none = [queue for queue in found if found[queue] >= bounds[queue].end]
        if none:
            raise OptionError(
                f"{position.option}: {', '.join(map(str, none))} has no message of that time or later; "
                f"set startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
    check_order(position.option, found, {queue: one.end for queue, one in bounds.items()})
    return found


def ending(position: Position, bounds: BoundsOf, cluster: QueueBounds) -> dict[MessageQueue, int]:
    """The offset before which to stop, of each queue. Raises as `beginning`."""
    return _places(position, bounds, cluster)


def check_order(option: str, begin: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> None:
    """Raise OptionError for a read that would begin behind its end."""
    for queue, offset in begin.items():
        if offset > end[queue]:
            raise OptionError(f"{option}: {queue} would be read from offset {offset}, and it ends at {end[queue]}")


def _places(position: Position, bounds: BoundsOf, cluster: QueueBounds) -> dict[MessageQueue, int]:
    if position.names_queues:
        _check_all_named(position, bounds)
    if position.is_by_time:
        found = cluster.at_times({queue: position.time_of(queue) for queue in bounds})
        return {queue: min(offset, bounds[queue].end) for queue, offset in found.items()}  # more may have come since
    places = {}
    for queue, one in bounds.items():
        number = position.numbers.get(queue, 0)
        if position.kind is PositionKind.EARLIEST or number == EARLIEST_OFFSET:
            places[queue] = one.first
        elif position.kind is PositionKind.LATEST or number == LATEST_OFFSET:
            places[queue] = one.end
        else:
            places[queue] = number
    return places


def _check_all_named(position: Position, bounds: BoundsOf) -> None:
    """An option that speaks of single queues speaks of all that are read, and of no others."""
    missing = sorted(bounds.keys() - position.numbers.keys())
    if missing:
        raise OptionError(f"{position.option} says nothing about {', '.join(map(str, missing))}; name every queue")
    unknown = sorted(position.numbers.keys() - bounds.keys())
    if unknown:
        raise OptionError(f"{position.option} names {', '.join(map(str, unknown))}, which this read does not have")


def within_bounds(
    begin: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], bounds: BoundsOf, *, fail_on_data_loss: bool
) -> dict[MessageQueue, tuple[int, int]]:
    """What can be read of what is wanted: (start, end) by queue; empty ranges are left out.

    Raises DataLossError for what cannot, or warns of it when `fail_on_data_loss` is false.
    """
    found = {}
    for queue, (first, last) in {queue: (begin[queue], ends[queue]) for queue in begin}.items():
        start, stop, bound = first, last, bounds[queue]
        if first < bound.first and first < last and not bound.by_slave:
            start = min(bound.first, last)
            report_loss(queue, first, start, f"the queue begins at offset {bound.first} now", fail=fail_on_data_loss)
        if last > bound.end and start < last and not bound.by_slave:
            stop = max(bound.end, start)
            report_loss(queue, stop, last, f"the queue ends at offset {bound.end}", fail=fail_on_data_loss)
        if start < stop:
            found[queue] = (start, stop)
    return found


def report_loss(queue: MessageQueue, start: int, stop: int, why: str, *, fail: bool) -> None:
    """Raise DataLossError, or log it."""
    sentence = lost_range(queue, start, stop, why)
    if fail:
        raise DataLossError(f"{sentence}; {LOSS_ADVICE}")
    logger.warning("%s; they are passed over, because failOnDataLoss is false", sentence)


def report_closed(queue: MessageQueue, offset: int, end: int, *, fail: bool) -> None:
    """Raise DataLossError for unread messages in a queue that cannot be read now, or log that it waits."""
    if not fail:
        logger.warning("%s cannot be read now; it is read on from offset %d when it can be", queue, offset)
    elif end > offset:
        raise DataLossError(
            f"the offsets {offset} to {end - 1} of topic {queue.topic!r}, broker {queue.broker_name!r}, queue "
            f"{queue.queue_id}, cannot be read: the topic's permission or its number of read queues does not allow it. "
            f"Give it back, or set failOnDataLoss=false to read the other queues meanwhile"
        )


def report_gone(queue: MessageQueue, offset: int, *, fail: bool) -> None:
    """As `report_loss`, for a queue that is there no more although its broker lives."""
    sentence = (
        f"what followed offset {offset} of topic {queue.topic!r}, broker {queue.broker_name!r}, "
        f"queue {queue.queue_id}, is lost: the broker has no such queue any more"
    )
    if fail:
        raise DataLossError(f"{sentence}; {LOSS_ADVICE}")
    logger.warning("%s; it is passed over, because failOnDataLoss is false", sentence)

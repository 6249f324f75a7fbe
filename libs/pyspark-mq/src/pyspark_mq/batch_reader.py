"""Batch reads: from options to offsets, one plan, one partition for each part of a queue (mechanisms Y1, Y4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from mqclient import MessageQueue
from pyspark_mq.clients import Bounds, ClientKey, Patience, QueueBounds, client_of
from pyspark_mq.errors import DataLossError, OptionError
from pyspark_mq.offsets import OffsetRange, split
from pyspark_mq.options import EARLIEST_OFFSET, LATEST_OFFSET, NoMatchStrategy, Position, PositionKind, ReadOptions
from pyspark_mq.partition_reader import LOSS_ADVICE, RangePartition, ReadPlan, lost_range, read_range
from pyspark_mq.pushdown import EVERYTHING, Wanted, push

logger = logging.getLogger("pyspark_mq.batch")

BoundsOf = Mapping[MessageQueue, Bounds]


def read_plan(options: ReadOptions, schema: StructType, wanted: Wanted) -> ReadPlan:
    """What the options say about the reading of a range."""
    return ReadPlan(
        key=client_key(options),
        schema=schema,
        wanted=wanted,
        fail_on_data_loss=options.fail_on_data_loss,
        pull_batch_size=options.pull_batch_size,
        pull_timeout_s=options.pull_timeout_s,
    )


def client_key(options: ReadOptions) -> ClientKey:
    """The key of the client for these options."""
    return ClientKey(options.url, options.group, options.read_from_replica)


class BatchReader(DataSourceReader):
    """Planned in a Python process of the driver, pickled, and read in the workers."""

    def __init__(self, options: ReadOptions, schema: StructType, wanted: Wanted) -> None:
        self._options = options
        self._pushed = EVERYTHING
        self._plan = read_plan(options, schema, wanted)

    def partitions(self) -> list[InputPartition]:
        """Raises MqSourceError."""
        options = self._options
        with client_of(self._plan.key) as client:
            ranges = self._ranges(QueueBounds(client, Patience(options.retries, options.retry_interval_s)))
        parts = split(
            ranges,
            min_partitions=options.min_partitions,
            max_records_per_partition=options.max_records_per_partition,
        )
        logger.info("%d partitions of %d queues, asked for %r", len(parts), len(ranges), self._plan.wanted.selector)
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises MqSourceError."""
        if isinstance(partition, RangePartition):  # Spark makes one of its own when there is nothing to read
            yield from read_range(partition.range, self._plan)

    def _ranges(self, cluster: QueueBounds) -> list[OffsetRange]:
        """What is read. A loss is reported before filters apply: it is one, whatever is asked for."""
        options, pushed, wanted = self._options, self._pushed, self._plan.wanted
        bounds = cluster.of(options.choice)
        begin = beginning(options.starting, bounds, cluster)
        ends = ending(options.ending, bounds, cluster)
        check_order(options.ending.option, begin, ends)
        within = within_bounds(begin, ends, bounds, fail_on_data_loss=options.fail_on_data_loss)
        found = {queue: one for queue, one in within.items() if pushed.takes(queue) and not wanted.is_nothing}
        earliest = cluster.at_times(dict.fromkeys(found, pushed.from_ms)) if pushed.from_ms is not None else {}
        latest = cluster.at_times(dict.fromkeys(found, pushed.to_ms)) if pushed.to_ms is not None else {}
        if found and wanted.may_ask_for_keys:
            can = cluster.filters_by_sql({queue.broker_name for queue in found})
            self._plan = replace(self._plan, wanted=replace(wanted, asks_for_keys=can))
        ranges = []
        for queue, (start, end) in found.items():
            first, last = pushed.within(max(start, earliest.get(queue, start)), min(end, latest.get(queue, end)))
            if first < last:
                ranges.append(OffsetRange(queue, first, last))
        return ranges


class PushdownBatchReader(BatchReader):
    """Takes filters over. Spark rejects a class with this method while its setting for pushing down is false."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Those that Spark has to look at itself."""
        self._pushed, left = push(filters)
        self._plan = replace(self._plan, wanted=self._plan.wanted.pushed(self._pushed))
        return left


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
        if first < bound.first and first < last and not bound.by_replica:
            start = min(bound.first, last)
            report_loss(queue, first, start, f"the queue begins at offset {bound.first} now", fail=fail_on_data_loss)
        if last > bound.end and start < last and not bound.by_replica:
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
    """As `report_loss`, for a queue that is there no more although its broker is registered."""
    sentence = (
        f"what followed offset {offset} of topic {queue.topic!r}, broker {queue.broker_name!r}, "
        f"queue {queue.queue_id}, is lost: the broker has no such queue any more"
    )
    if fail:
        raise DataLossError(f"{sentence}; {LOSS_ADVICE}")
    logger.warning("%s; it is passed over, because failOnDataLoss is false", sentence)

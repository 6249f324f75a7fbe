"""Batch reads: one plan, one partition for each part of a queue (MISSION Y1, Y4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_mq import planning
from pyspark_mq.clients import ClientKey, Patience, client_of
from pyspark_mq.options import ReadOptions
from pyspark_mq.partition_reader import RangePartition, ReadPlan, read_range
from pyspark_mq.pushdown import EVERYTHING, push
from pyspark_mq.queue_bounds import QueueBounds
from pyspark_mq.ranges import OffsetRange, split
from pyspark_mq.wanted import Wanted

logger = logging.getLogger("pyspark_mq.batch")


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
    """Whose client the options ask for."""
    return ClientKey(options.url, options.group, options.read_from_slave)


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
        """What is read. A loss is told before filters make less of it: it is one, whatever is asked for."""
        options, pushed, wanted = self._options, self._pushed, self._plan.wanted
        bounds = cluster.of(options.choice)
        begin = planning.beginning(options.starting, bounds, cluster)
        ends = planning.ending(options.ending, bounds, cluster)
        planning.check_order(options.ending.option, begin, ends)
        within = planning.within_bounds(begin, ends, bounds, fail_on_data_loss=options.fail_on_data_loss)
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
    """Takes filters over. Spark refuses a class with this method while its setting for pushing down is false."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Those that Spark has to look at itself."""
        self._pushed, left = push(filters)
        self._plan = replace(self._plan, wanted=self._plan.wanted.pushed(self._pushed))
        return left

"""Streams: offsets live in Spark's checkpoint, and nothing else decides what is read (mechanism Y2).

Invariants: an offset names every queue that the query has met, and only grows, unless a broker has lost messages that
were read already, and failOnDataLoss is false; a queue is in an offset, with its beginning, before anything of it is
read, so that a batch that is run again reads exactly what it has read before.
What is committed to a group on the broker is for showing lag; it is never asked for.

Of a micro-batch: no offset passes its queue's end, and none goes back unless its queue has become shorter; a limit is
kept exactly. A queue with something to read gets at least one record of each batch or, when the limit is below the
number of such queues, one in turn with the others: no queue waits for ever, however fast the others are filled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from mqclient import MessageQueue, MQClientError
from osenv import Clock, RealClock
from pyspark_mq.batch_reader import beginning, client_key, read_plan, report_closed, report_gone, report_loss
from pyspark_mq.clients import Bounds, Client, Patience, QueueBounds, client_of, close_idle
from pyspark_mq.offsets import OffsetRange, Offsets, OffsetsJson, from_json, split, to_json
from pyspark_mq.options import ReadOptions
from pyspark_mq.partition_reader import RangePartition, read_range
from pyspark_mq.pushdown import Wanted

CHECKPOINT = "the offset in the checkpoint"

logger = logging.getLogger("pyspark_mq.stream")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of its own beside the driver; only `read` runs in the workers."""

    def __init__(self, options: ReadOptions, schema: StructType, wanted: Wanted, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or RealClock()
        self._plan = read_plan(options, schema, wanted)
        self._target: dict[MessageQueue, int] | None = None  # of AvailableNow
        self._bounds: dict[MessageQueue, Bounds] = {}  # as they were last heard
        self._begun_at: float | None = None  # monotonic; when the last batch began
        self._shown: dict[MessageQueue, int] = {}  # what the group's brokers have been told
        self._closed: set[MessageQueue] = set()  # those of which it was said that they wait

    def initialOffset(self) -> OffsetsJson:  # noqa: N802 - Spark's name
        """Where a new query begins. Raises MqSourceError."""
        with client_of(client_key(self._options)) as client:
            cluster = self._cluster(client)
            bounds = cluster.of(self._options.choice)
            begin = beginning(self._options.starting, bounds, cluster)
        return to_json(begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What maxOffsetsPerTrigger and minOffsetsPerTrigger say."""
        if self._options.max_offsets_per_trigger:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetsJson:  # noqa: N802
        """Where the next batch ends; `start` again when there is to be none. Raises MqSourceError.

        What lies before `start` is processed: Spark asks when the batch before has ended, or was run again.
        """
        begin = from_json(start, CHECKPOINT)
        self._show_progress(begin)
        self._bounds = bounds = self._ask_bounds(begin)
        ends = self._ends(begin, bounds)
        waiting = waiting_records(begin, ends)
        if self._waits_for_more(waiting, limit):
            ends = begin
        elif isinstance(limit, ReadMaxRows):
            ends = batch_ends(begin, ends, limit.max_rows)
        if ends != begin:
            self._begun_at = self._clock.monotonic()
        # A queue that is met now is read from the next batch on: its beginning has to be in an offset first.
        return to_json({queue: one.first for queue, one in bounds.items() if self._may_begin(queue)} | ends)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember what is there now: the query ends there."""
        self._target = {queue: one.end for queue, one in self._ask_bounds({}).items()}

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        """The ends of all queues as they were last heard, for the query's progress."""
        ends = {queue: one.end for queue, one in self._bounds.items() if not one.is_closed}
        return to_json(ends) if ends else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What lies between. Whether it can still be read shows when it is read."""
        begin, ends = from_json(start, CHECKPOINT), from_json(end, CHECKPOINT)
        parts = split(
            (OffsetRange(queue, begin[queue], ends[queue]) for queue in sorted(ends) if queue in begin),
            min_partitions=self._options.min_partitions,
            max_records_per_partition=self._options.max_records_per_partition,
        )
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises MqSourceError."""
        if isinstance(partition, RangePartition):
            yield from read_range(partition.range, self._plan)

    def commit(self, end: dict[str, Any]) -> None:
        """What lies before `end` is processed. Spark does not say so of a query's last batch, see `latestOffset`."""
        self._show_progress(from_json(end, CHECKPOINT))

    def stop(self) -> None:
        """Leave no connection behind."""
        close_idle()

    def _show_progress(self, processed: dict[MessageQueue, int]) -> None:
        """Tell the group's brokers, so that they can show how far behind it is. A query does not fail by this."""
        changed = {queue: offset for queue, offset in processed.items() if self._shown.get(queue) != offset}
        if not self._options.group or not changed:
            return
        with client_of(client_key(self._options)) as client:
            for queue, offset in changed.items():
                try:
                    client.consumer.commit(queue, offset)
                except MQClientError as error:
                    logger.warning("the lag of group %s in %s is not up to date: %s", self._options.group, queue, error)
                else:
                    self._shown[queue] = offset

    def _cluster(self, client: Client) -> QueueBounds:
        return QueueBounds(client, Patience(self._options.retries, self._options.retry_interval_s))

    def _ask_bounds(self, begin: dict[MessageQueue, int]) -> dict[MessageQueue, Bounds]:
        with client_of(client_key(self._options)) as client:
            waits = not self._options.fail_on_data_loss
            return self._cluster(client).of(self._options.choice, begin, waits=waits)

    def _ends(self, begin: dict[MessageQueue, int], bounds: dict[MessageQueue, Bounds]) -> dict[MessageQueue, int]:
        """Up to where the queues of `begin` can be read; of AvailableNow not beyond what was there at first.

        A queue that is gone is left out, and one that is closed keeps its place. Raises DataLossError for them, and for
        one that has become shorter.
        """
        ends = {}
        for queue, offset in begin.items():
            bound = bounds.get(queue)
            if bound is None:
                report_gone(queue, offset, fail=self._options.fail_on_data_loss)
                continue
            if bound.is_closed:
                ends[queue] = offset
                self._tell_closed(queue, offset, bound)
                continue
            self._closed.discard(queue)
            ends[queue] = max(offset, bound.end)
            if bound.end < offset and not bound.by_replica:
                why = f"they were read before, and the queue ends at offset {bound.end} now"
                report_loss(queue, bound.end, offset, why, fail=self._options.fail_on_data_loss)
                ends[queue] = bound.end  # what comes will have the offsets of what is gone
            elif self._target is not None:
                ends[queue] = max(offset, min(bound.end, self._target.setdefault(queue, bound.end)))
        return ends

    def _tell_closed(self, queue: MessageQueue, offset: int, bound: Bounds) -> None:
        fail = self._options.fail_on_data_loss
        if fail or queue not in self._closed:
            report_closed(queue, offset, bound.end, fail=fail)
        self._closed.add(queue)

    def _may_begin(self, queue: MessageQueue) -> bool:
        return self._target is None or queue in self._target

    def _waits_for_more(self, waiting: int, limit: ReadLimit) -> bool:
        """Whether minOffsetsPerTrigger lets this batch wait; maxTriggerDelay ends that, and nothing else is asked."""
        least = self._options.min_offsets_per_trigger
        if not least or self._target is not None or isinstance(limit, ReadAllAvailable) or waiting >= least:
            return False
        since = self._begun_at
        return since is not None and self._clock.monotonic() < since + self._options.max_trigger_delay_s


def batch_ends(begin: Offsets, end: Offsets, limit: int) -> dict[MessageQueue, int]:
    """Where a batch of at most `limit` records ends.

    Every queue gets one record, and its share of the rest, rounded down; what rounding leaves over goes to those that
    lost most by it. When not even one record each is allowed, the queues take turns: what was read until now says whose
    turn it is.
    """
    waiting = {queue: end[queue] - begin[queue] for queue in sorted(end) if end[queue] > begin[queue]}
    total, count = sum(waiting.values()), len(waiting)
    if total <= limit:
        return dict(end)
    if limit <= count:
        turn = sum(begin.values()) % count
        share = dict.fromkeys((*waiting, *waiting)[turn : turn + limit], 1)
    else:
        more, beyond = limit - count, total - count
        share = {queue: 1 + more * (size - 1) // beyond for queue, size in waiting.items()}
        lost = sorted(waiting, key=lambda queue: (-(more * (waiting[queue] - 1) % beyond), queue))
        for queue in lost[: limit - sum(share.values())]:
            share[queue] += 1
    return {queue: min(begin[queue] + share.get(queue, 0), end[queue]) for queue in end}  # one may have become shorter


def waiting_records(begin: Offsets, end: Mapping[MessageQueue, int]) -> int:
    """How many records lie between."""
    return sum(end[queue] - begin[queue] for queue in end)

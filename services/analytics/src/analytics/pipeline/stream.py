"""The streaming job: every message of the queue into bronze, once per offset.

Invariant: offsets are in Spark's checkpoint and files in the sink's own list, both named by batch; a batch that is run
again writes nothing twice. The job can therefore be killed at any moment and started again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from analytics.jobs.bronze import bronze
from analytics.queue_choice import Queue
from analytics.warehouse import DAY, Warehouse

QUERY_NAME = "bronze"
LOOK_INTERVAL_S = 1  # Spark takes whole seconds

# topic -> broker -> queue -> the next offset to read
Offsets = Mapping[str, Mapping[str, Mapping[str, int]]]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of the query. Rates are rows a second. `lag` and `read_until` are messages and offsets by topic, summed
    over its queues; `lag` is empty when the source has not said what the latest offsets are.
    """

    number: int
    rows: int
    input_rows_per_s: float
    processed_rows_per_s: float
    duration_ms: int
    read_until: Mapping[str, int]
    lag: Mapping[str, int]


def start_bronze(
    spark: SparkSession, warehouse: Warehouse, queue: Queue, *, trigger_s: float | None = None
) -> StreamingQuery:
    """Start it: until everything that is there now has been read, or with `trigger_s` for ever, that often."""
    writer = bronze(queue.stream(spark)).writeStream.format("parquet").queryName(QUERY_NAME)
    writer = writer.option("path", warehouse.events).option("checkpointLocation", warehouse.bronze_checkpoint)
    writer = writer.partitionBy(DAY)
    if trigger_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(trigger_s * 1000)} milliseconds").start()


def follow(query: StreamingQuery, *, until: Callable[[], bool] = lambda: False) -> Iterator[Batch]:
    """Each batch that had rows, as soon as it is over, until the query ends or `until` says so.

    In between comes the last batch again, with no rows, so that whoever waits sees that it goes on. Raises
    StreamingQueryException when the query fails.
    """
    seen = -1
    while True:
        ended = query.awaitTermination(LOOK_INTERVAL_S)
        for progress in query.recentProgress:
            batch = batch_of(progress)
            if batch.number > seen and batch.rows:
                seen = batch.number
                yield batch
        if (last := query.lastProgress) is not None and not last["numInputRows"]:
            yield batch_of(last)
        if ended or until():
            return


def batch_of(progress: Mapping[str, Any]) -> Batch:
    """What Spark's progress says."""
    (source,) = progress["sources"]
    end, latest = read_offsets(source["endOffset"]), read_offsets(source["latestOffset"])
    read_until = _by_topic(end)
    lag = {topic: max(0, count - read_until.get(topic, 0)) for topic, count in _by_topic(latest).items()}
    return Batch(
        number=progress["batchId"],
        rows=progress["numInputRows"] or 0,
        input_rows_per_s=_rate(progress["inputRowsPerSecond"]),
        processed_rows_per_s=_rate(progress["processedRowsPerSecond"]),
        duration_ms=progress["batchDuration"] or 0,
        read_until=read_until,
        lag=lag,
    )


def read_offsets(text: Any) -> Offsets:
    """The offsets that Spark shows as JSON; empty where it shows none."""
    if not text or text in ("null", "None"):
        return {}
    found = json.loads(text) if isinstance(text, str) else text
    return found if isinstance(found, dict) else {}


def _by_topic(offsets: Offsets) -> dict[str, int]:
    return {
        topic: sum(offset for queues in brokers.values() for offset in queues.values())
        for topic, brokers in offsets.items()
    }


def _rate(value: float | None) -> float:
    """Spark's rate of an empty batch is not a number, or infinite."""
    return value if value is not None and 0 <= value < float("inf") else 0.0

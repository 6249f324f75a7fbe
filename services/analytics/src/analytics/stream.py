"""The queue that the tables are made from, and the streaming job: every message of it into bronze, once per offset.

Invariant: offsets are in Spark's checkpoint and files in the sink's own list, both named by batch; a batch that is run
again writes nothing twice. The job can therefore be killed at any moment and started again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from analytics.events import TOPICS
from analytics.jobs.bronze import bronze
from analytics.jobs.silver import WAITING_TOPICS
from analytics.warehouse import DAY, Warehouse

OFFSETS_PER_BATCH = 500_000
QUERY_NAME = "bronze"
LOOK_INTERVAL_S = 1  # Spark takes whole seconds

# A pattern, since a queue in which nothing was told yet lacks some of them. What waited says when it was due.
TOPIC_PATTERN = "|".join(re.escape(topic) for topic in (*TOPICS, *WAITING_TOPICS))

# topic -> broker -> queue -> the next offset to read
Offsets = Mapping[str, Mapping[str, Mapping[str, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """`namesrv_addr` as host:port, several separated by `;`. `group` is the consumer group under which progress is told
    to the broker, for showing lag only; empty: none.
    """

    namesrv_addr: str
    group: str = ""
    from_slave: bool = False
    offsets_per_batch: int = OFFSETS_PER_BATCH

    def stream(self, spark: SparkSession) -> DataFrame:
        """Every message from the first one that the queue has, as it comes; offsets live in Spark's checkpoint."""
        reader = spark.readStream.format("mq").options(**self._options(), startingOffsets="earliest")
        reader = reader.option("maxOffsetsPerTrigger", str(self.offsets_per_batch))
        return (reader.option("group", self.group) if self.group else reader).load()

    def between(self, spark: SparkSession, begin: datetime, end: datetime | None) -> DataFrame:
        """The messages that were stored from `begin` on, and before `end`. Raises ValueError for times without zone."""
        reader = spark.read.format("mq").options(**self._options())
        reader = reader.option("startingTimestamp", str(_ms(begin)))
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")  # a queue may have nothing that new
        if end is not None:
            reader = reader.option("endingTimestamp", str(_ms(end)))
        return reader.load()

    def _options(self) -> dict[str, str]:
        return {
            "namesrvAddr": self.namesrv_addr,
            "subscribePattern": TOPIC_PATTERN,
            "includeSystemTopics": "true",
            "readFromSlave": "true" if self.from_slave else "false",
        }


def _ms(at: datetime) -> int:
    if at.tzinfo is None:
        raise ValueError(f"{at} has no zone")
    return round(at.timestamp() * 1000)


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

    In between comes the last batch again, with no rows, so that the caller sees that it goes on. Raises
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

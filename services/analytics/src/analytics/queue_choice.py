"""The queue that the tables are made from: its name servers, the topics that are read, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from analytics.event_kinds import TOPICS
from analytics.jobs.silver import WAITING_TOPICS

# A pattern, since a queue in which nothing was told yet lacks some of them. What waited says when it was due.
TOPIC_PATTERN = "|".join(re.escape(topic) for topic in (*TOPICS, *WAITING_TOPICS))
OFFSETS_PER_BATCH = 500_000


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

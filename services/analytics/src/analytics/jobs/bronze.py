"""Source -> bronze: the messages as they are, with the day on which the broker stored them (MISSION Y6).

Invariant: bronze is what was told, also what nobody can read; it is never changed. A message stands in it twice if it
was read twice (by a backfill, and then by the stream): `unique` drops the second, by its place in the queue.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from analytics.jobs.times import utc_day
from analytics.schemas import BRONZE

PLACE = ("topic", "broker", "queueId", "queueOffset")  # no two messages share it


def bronze(messages: DataFrame) -> DataFrame:
    """BRONZE of what the data source `mq` has read, in batch or streaming."""
    return messages.withColumn("day", utc_day("storeTimestamp")).select(*BRONZE.names)


def unique(rows: DataFrame) -> DataFrame:
    """Bronze with each place once; the silver jobs do not need it, counts of messages do."""
    return rows.dropDuplicates(list(PLACE))

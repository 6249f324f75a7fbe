"""What was read -> how many events of which kind and version there were, and how many could not be read (MISSION Y6).

Messages are counted, so an event that was told twice counts twice; give it unique bronze. `outcome` is `read`, `newer`
(of a version later than this program knows: read for what it still has), or `rejected`, which has no version.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType

from analytics.event_kinds import VERSION_KNOWN
from analytics.jobs.times import utc_day

EVENT_COUNTS = StructType(
    [
        StructField("day", DateType()),
        StructField("topic", StringType()),
        StructField("kind", StringType()),
        StructField("version", IntegerType()),
        StructField("outcome", StringType()),
        StructField("messages", LongType()),
    ]
)


def event_counts(read: DataFrame) -> DataFrame:
    """EVENT_COUNTS of what events.read_bodies has read, by the day on which the broker stored it."""
    is_event = F.col("problem").isNull()
    counted = read.groupBy(
        utc_day("stored_at").alias("day"),
        "topic",
        "kind",
        F.when(is_event, F.col("version")).alias("version"),
        F.when(~is_event, "rejected")
        .when(F.col("version") > VERSION_KNOWN, "newer")
        .otherwise("read")
        .alias("outcome"),
    ).agg(F.count("*").alias("messages"))
    return counted.select(*EVENT_COUNTS.names)

"""Source -> bronze: the messages as they are, with the day on which the broker stored them (mechanism Y6).

Invariant: bronze is what was told, also what cannot be read; it is never changed. A message stands in it twice if it
was read twice (by a backfill, and then by the stream): `unique` drops the second, by its place in the queue.

Of every table: a column may always be null as far as Spark knows, what must be there is checked where it is read; times
are UTC with milliseconds, whatever the session's time zone is; money is in the currency's minor unit. Every column is
explained in docs/guides/pipeline.md.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructField, StructType

from pyspark_mq import SCHEMA

PLACE = ("topic", "broker", "queueId", "queueOffset")  # no two messages share it
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

# As the data source `mq` names them, and the day of storeTimestamp.
BRONZE = StructType([*SCHEMA.fields, StructField("day", DateType())])


def bronze(messages: DataFrame) -> DataFrame:
    """BRONZE of what the data source `mq` has read, in batch or streaming."""
    return messages.withColumn("day", utc_day("storeTimestamp")).select(*BRONZE.names)


def unique(rows: DataFrame) -> DataFrame:
    """Bronze with each place once; the silver jobs do not need it, counts of messages do."""
    return rows.dropDuplicates(list(PLACE))


def utc_day(at: str | Column) -> Column:
    """The date of a timestamp."""
    return F.date_from_unix_date(F.floor(F.unix_millis(at) / DAY_MS).cast("int"))


def start_of(at: str | Column, period_ms: int) -> Column:
    """When the period began in which a timestamp lies; periods are counted from 1970."""
    at_ms = F.unix_millis(at)
    return F.timestamp_millis(at_ms - F.pmod(at_ms, F.lit(period_ms)))


def elapsed_ms(since: str | Column, until: str | Column) -> Column:
    """The milliseconds between two timestamps; negative when `until` is the earlier one."""
    return F.unix_millis(until) - F.unix_millis(since)

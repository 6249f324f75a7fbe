"""Orders -> how many were left unpaid, by the hour and by the day in which they were created (MISSION Y6).

Abandoned is what was closed without ever having been paid, for whatever reason; what still waits for its payment is
neither abandoned nor paid. The rate is abandoned / created.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, DoubleType, LongType, StringType, StructField, StructType, TimestampType

from analytics.jobs.silver_orders import is_closed, is_paid
from analytics.jobs.times import DAY_MS, HOUR_MS, start_of, utc_day

ABANDONED_RATE = StructType(
    [
        StructField("day", DateType()),
        StructField("period", StringType()),
        StructField("starts_at", TimestampType()),
        StructField("created", LongType()),
        StructField("paid", LongType()),
        StructField("abandoned", LongType()),
        StructField("waiting", LongType()),
        StructField("rate", DoubleType()),
    ]
)

PERIODS = (("hour", HOUR_MS), ("day", DAY_MS))


def abandoned_rate(orders: DataFrame) -> DataFrame:
    """ABANDONED_RATE of those ORDERS whose `created` was told."""
    periods = F.array(
        *(
            F.struct(F.lit(name).alias("period"), start_of("created_at", length_ms).alias("starts_at"))
            for name, length_ms in PERIODS
        )
    )
    known = orders.where(F.col("created_at").isNotNull()).select(
        is_paid().alias("is_paid"), is_closed().alias("is_closed"), F.inline(periods)
    )
    paid, closed = F.col("is_paid"), F.col("is_closed")
    grouped = known.groupBy("period", "starts_at").agg(
        F.count("*").alias("created"),
        F.count_if(paid).alias("paid"),
        F.count_if(~paid & closed).alias("abandoned"),
        F.count_if(~paid & ~closed).alias("waiting"),
    )
    rated = grouped.withColumns({"day": utc_day("starts_at"), "rate": F.try_divide("abandoned", "created")})
    return rated.select(*ABANDONED_RATE.names)

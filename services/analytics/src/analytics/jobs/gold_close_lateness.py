"""Orders and timers -> how late unpaid orders were closed, and how late the broker delivered (MISSION Y6).

Two measures: `order-closed` is closed_at - expires_at of the orders that expired; `timer-delivered` is the broker's
own, by delay level. Percentiles are exact, over all days, since those of days do not add up. What is early counts as 0,
as with the broker, whose own percentiles are these, rounded up to the end of their class (lateness_classes).
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType

from analytics.jobs.lateness_classes import class_from_ms, class_to_ms
from analytics.jobs.quantiles import QUANTILE_FIELDS, quantiles
from analytics.jobs.silver_orders import is_closed
from analytics.jobs.times import elapsed_ms, utc_day

_MEASURE = (StructField("measure", StringType()), StructField("level", IntegerType()))
CLOSE_LATENESS = StructType([*_MEASURE, *QUANTILE_FIELDS])
LATENESS_CLASSES = StructType(
    [
        StructField("day", DateType()),
        *_MEASURE,
        StructField("from_ms", LongType()),
        StructField("to_ms", LongType()),
        StructField("count", LongType()),
    ]
)

ORDER_CLOSED = "order-closed"
TIMER_DELIVERED = "timer-delivered"
EXPIRED = "expired"  # the reason with which orders closes what nobody paid in time


def close_lateness(orders: DataFrame, timers: DataFrame) -> DataFrame:
    """CLOSE_LATENESS: one row for the orders, one for each delay level."""
    measured = _measured(orders, timers)
    return quantiles(measured, ["measure", "level"], "lateness_ms").select(*CLOSE_LATENESS.names)


def lateness_classes(orders: DataFrame, timers: DataFrame) -> DataFrame:
    """LATENESS_CLASSES: the same as a histogram of the broker's classes, by the day of closing or delivering."""
    classed = _measured(orders, timers).select(
        "day",
        "measure",
        "level",
        class_from_ms("lateness_ms").alias("from_ms"),
        class_to_ms("lateness_ms").alias("to_ms"),
    )
    counted = classed.groupBy("day", "measure", "level", "from_ms", "to_ms").agg(F.count("*").alias("count"))
    return counted.select(*LATENESS_CLASSES.names)


def _measured(orders: DataFrame, timers: DataFrame) -> DataFrame:
    expired = orders.where(is_closed() & (F.col("close_reason") == EXPIRED)).select(
        utc_day("closed_at").alias("day"),
        F.lit(ORDER_CLOSED).alias("measure"),
        F.lit(None).cast("int").alias("level"),
        elapsed_ms("expires_at", "closed_at").alias("lateness_ms"),
    )
    delivered = timers.select(
        utc_day("delivered_at").alias("day"), F.lit(TIMER_DELIVERED).alias("measure"), "level", "lateness_ms"
    )
    both = expired.unionByName(delivered).where(F.col("lateness_ms").isNotNull())
    return both.withColumn("lateness_ms", F.greatest(F.lit(0).cast("long"), "lateness_ms"))

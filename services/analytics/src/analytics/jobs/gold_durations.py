"""The gold tables that say how long something took: to pay, and to close after the expiry."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType

from analytics.jobs.bronze import elapsed_ms, utc_day
from analytics.jobs.silver import is_closed

# Percentiles, exactly: the smallest value that a share of the values does not exceed.
#
# They are found in a table of how often each value occurs, in order: Spark sorts it and may spill it, so that nothing
# has to fit into memory, and the answer is a value that occurred. It is also the broker's definition
# (mq_broker.core.delays), which rounds it up to the end of a class.

SHARES = (("p50_ms", 0.50), ("p90_ms", 0.90), ("p95_ms", 0.95), ("p99_ms", 0.99))
QUANTILE_FIELDS = (
    StructField("count", LongType()),
    *(StructField(name, LongType()) for name, _ in SHARES),
    StructField("max_ms", LongType()),
    StructField("sum_ms", LongType()),
)


def quantiles(rows: DataFrame, keys: Sequence[str], value_ms: str) -> DataFrame:
    """One row per value of `keys`, with QUANTILE_FIELDS; nulls in `value_ms` are not counted."""
    occurring = rows.where(F.col(value_ms).isNotNull())
    frequencies = occurring.groupBy(*keys, value_ms).agg(F.count("*").alias("frequency"))
    own = Window.partitionBy(*keys)
    upwards = own.orderBy(value_ms).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    counted = frequencies.select(
        *keys,
        value_ms,
        "frequency",
        F.sum("frequency").over(upwards).alias("seen"),
        F.sum("frequency").over(own).alias("total"),
    )
    return counted.groupBy(*keys).agg(
        F.sum("frequency").alias("count"),
        *(
            F.min(F.when(F.col("seen") >= F.col("total") * share, F.col(value_ms))).alias(name)
            for name, share in SHARES
        ),
        F.max(value_ms).alias("max_ms"),
        F.sum(F.col(value_ms) * F.col("frequency")).alias("sum_ms"),
    )


# The classes in which the broker counts lateness, so that its figures and these can be laid side by side.
#
# Eight classes to each doubling, as in mq_broker.core.delays; up to 15 ms each millisecond has a class of its own.

_SPLIT_BITS = 3  # classes to a doubling, as a power of two


def class_from_ms(value_ms: str | Column) -> Column:
    """The smallest value of the class of `value_ms`, which is not negative."""
    shift = _shift(value_ms)
    return F.call_function("shiftleft", F.call_function("shiftright", value_ms, shift), shift)


def class_to_ms(value_ms: str | Column) -> Column:
    """The greatest value of the class; the broker answers it for a quantile, or the maximum if that is less."""
    return class_from_ms(value_ms) + F.call_function("shiftleft", F.lit(1).cast("long"), _shift(value_ms)) - 1


def _shift(value_ms: str | Column) -> Column:
    bits = F.length(F.bin(value_ms))
    return F.greatest(F.lit(0), bits - (_SPLIT_BITS + 1))


# Orders -> how long buyers took to pay, by the day on which the order was created (mechanism Y6).
#
# Percentiles are exact. A payment that the gateway took before the order's clock says it was created (clocks disagree
# by some milliseconds) counts as 0.

TIME_TO_PAY = StructType([StructField("day", DateType()), *QUANTILE_FIELDS])


def time_to_pay(orders: DataFrame) -> DataFrame:
    """TIME_TO_PAY of those ORDERS of which both times are known."""
    took_ms = F.greatest(F.lit(0).cast("long"), elapsed_ms("created_at", "paid_at"))
    known = orders.where(F.col("created_at").isNotNull() & F.col("paid_at").isNotNull())
    return quantiles(known.select("day", took_ms.alias("took_ms")), ["day"], "took_ms").select(*TIME_TO_PAY.names)


# Orders and timers -> how late unpaid orders were closed, and how late the broker delivered (mechanism Y6).
#
# Two measures: `order-closed` is closed_at - expires_at of the orders that expired; `timer-delivered` is the broker's
# own, by delay level. Percentiles are exact, over all days, since those of days do not add up. What is early counts as
# 0, as with the broker, whose own percentiles are these, rounded up to the end of their class (lateness_classes).

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
EXPIRED = "expired"  # the reason with which orders closes what was not paid in time


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

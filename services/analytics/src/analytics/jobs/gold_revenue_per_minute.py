"""Orders -> what was sold in each minute, by product (MISSION Y6).

An order counts in the minute in which its buyer paid, with its lines as they were ordered. It goes on counting if its
seller cancels it later: what went back is in order_totals. The revenue of all rows is that of order_totals.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType, TimestampType

from analytics.jobs.times import MINUTE_MS, start_of, utc_day

REVENUE_PER_MINUTE = StructType(
    [
        StructField("day", DateType()),
        StructField("minute", TimestampType()),
        StructField("product_id", StringType()),
        StructField("currency", StringType()),
        StructField("orders", LongType()),
        StructField("units", LongType()),
        StructField("revenue_minor", LongType()),
    ]
)


def revenue_per_minute(orders: DataFrame) -> DataFrame:
    """REVENUE_PER_MINUTE of ORDERS: minutes without a paid order have no row."""
    paid = orders.where(F.col("paid_at").isNotNull()).select(
        start_of("paid_at", MINUTE_MS).alias("minute"),
        "currency",
        F.col("lines.product_id").alias("product_ids"),
        F.posexplode("lines").alias("position", "line"),
    )
    # Of several lines of one product the first counts the order.
    is_first = F.array_position("product_ids", F.col("line.product_id")) == F.col("position") + 1
    grouped = paid.groupBy("minute", F.col("line.product_id").alias("product_id"), "currency").agg(
        F.count_if(is_first).alias("orders"),
        F.sum("line.quantity").alias("units"),
        F.sum(F.col("line.quantity") * F.col("line.unit_price_minor")).alias("revenue_minor"),
    )
    return grouped.withColumn("day", utc_day("minute")).select(*REVENUE_PER_MINUTE.names)

"""Orders -> what became of the units that were ordered, by product and the day of the order (MISSION Y6).

    reserved = sold + released + waiting        sold = kept + taken back

Over all days `waiting` is the product's `reserved` in the database of orders, and `kept` its `sold`. A line of an order
that was told without its lines is not known.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from analytics.jobs.silver_orders import is_closed, is_known_to_orders, is_paid

STOCK_TURNOVER = StructType(
    [
        StructField("day", DateType()),
        StructField("product_id", StringType()),
        StructField("units_reserved", LongType()),
        StructField("units_sold", LongType()),
        StructField("units_released", LongType()),
        StructField("units_waiting", LongType()),
        StructField("units_taken_back", LongType()),
        StructField("units_kept", LongType()),
    ]
)


def stock_turnover(orders: DataFrame) -> DataFrame:
    """STOCK_TURNOVER of ORDERS."""
    known = orders.where(is_known_to_orders()).select(
        "day", is_paid().alias("paid"), is_closed().alias("closed"), F.inline("lines")
    )
    paid, closed = F.col("paid"), F.col("closed")
    grouped = known.groupBy("day", "product_id").agg(
        F.sum("quantity").alias("units_reserved"),
        _units(paid).alias("units_sold"),
        _units(~paid & closed).alias("units_released"),
        _units(~paid & ~closed).alias("units_waiting"),
        _units(paid & closed).alias("units_taken_back"),
        _units(paid & ~closed).alias("units_kept"),
    )
    return grouped.select(*STOCK_TURNOVER.names)


def _units(counted: Column) -> Column:
    return F.sum(F.when(counted, F.col("quantity")).otherwise(F.lit(0).cast("long")))

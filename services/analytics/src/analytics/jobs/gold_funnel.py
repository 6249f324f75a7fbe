"""Orders -> how many of a day's orders came how far (MISSION Y6).

An order counts in a step if it got there, also if it was closed afterwards; a later step implies the earlier ones.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, DoubleType, IntegerType, LongType, StringType, StructField, StructType

from analytics.jobs.silver_orders import is_known_to_orders, is_paid

FUNNEL = StructType(
    [
        StructField("day", DateType()),
        StructField("step_number", IntegerType()),
        StructField("step", StringType()),
        StructField("orders", LongType()),
        StructField("share_of_created", DoubleType()),
        StructField("share_of_step_before", DoubleType()),
    ]
)

STEPS = ("created", "paid", "shipped", "completed")


def funnel(orders: DataFrame) -> DataFrame:
    """FUNNEL of ORDERS: four rows to each day on which orders were created."""
    reached = {
        "created": is_known_to_orders(),
        "paid": is_paid(),
        "shipped": F.coalesce("shipped_at", "completed_at").isNotNull(),
        "completed": F.col("completed_at").isNotNull(),
    }
    known = orders.where(is_known_to_orders())
    counted = known.groupBy("day").agg(*(F.count_if(reached[step]).alias(step) for step in STEPS))
    rows = F.array(*(_row(number, step) for number, step in enumerate(STEPS, start=1)))
    return counted.select("day", F.inline(rows)).select(*FUNNEL.names)


def _row(number: int, step: str) -> Column:
    before = STEPS[max(0, number - 2)]
    return F.struct(
        F.lit(number).alias("step_number"),
        F.lit(step).alias("step"),
        F.col(step).alias("orders"),
        F.try_divide(step, "created").alias("share_of_created"),
        F.try_divide(step, before).alias("share_of_step_before"),
    )

"""Orders -> one row per payment: what was captured, and how much of it went back (MISSION Y6).

Invariants: status, amounts and captured_at are those of the payment in the database of payments once all its events are
there. A payment of which only refunds or refund requests were told has no status and no amount.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from analytics.jobs.silver_orders import sum_minor
from analytics.jobs.times import utc_day

PAYMENTS = StructType(
    [
        StructField("payment_id", StringType()),
        StructField("order_id", StringType()),
        StructField("status", StringType()),
        StructField("amount_minor", LongType()),
        StructField("currency", StringType()),
        StructField("captured_at", TimestampType()),
        StructField("pays_order", BooleanType()),
        StructField("refund_request_reason", StringType()),
        StructField("refunds", IntegerType()),
        StructField("refunded_minor", LongType()),
        StructField("last_refunded_at", TimestampType()),
        StructField("day", DateType()),
    ]
)


def payments(orders: DataFrame) -> DataFrame:
    """PAYMENTS of what ORDERS say; no shuffle."""
    ids = F.concat("captures.payment_id", "refunds.payment_id", "refund_requests.payment_id")
    named = orders.withColumnRenamed("payment_id", "paid_by").withColumn("payment_id", F.explode(F.array_distinct(ids)))
    own = named.select(
        "payment_id",
        "order_id",
        "paid_by",
        F.get(_own("captures"), 0).alias("capture"),
        _own("refunds").alias("of_refunds"),
        F.get(_own("refund_requests"), 0)["reason"].alias("refund_request_reason"),
        F.col("day").alias("order_day"),
    )
    return (
        own.withColumn("refunded_minor", sum_minor("of_refunds", F.col("capture.currency")))
        .select(
            "*",
            "capture.amount_minor",
            "capture.currency",
            "capture.captured_at",
            F.coalesce(F.col("payment_id") == F.col("paid_by"), F.lit(False)).alias("pays_order"),
            F.size("of_refunds").alias("refunds"),
            F.array_max("of_refunds.refunded_at").alias("last_refunded_at"),
            F.coalesce(utc_day("capture.captured_at"), "order_day").alias("day"),
        )
        .withColumn("status", _status())
        .select(*PAYMENTS.names)
    )


def _own(facts: str) -> Column:
    return F.filter(facts, lambda fact: fact["payment_id"] == F.col("payment_id"))


def _status() -> Column:
    captured = F.col("captured_at").isNotNull()
    return (
        F.when(captured & (F.col("refunded_minor") == 0), "CAPTURED")
        .when(captured & (F.col("refunded_minor") < F.col("amount_minor")), "PARTIALLY_REFUNDED")
        .when(captured, "REFUNDED")
    )

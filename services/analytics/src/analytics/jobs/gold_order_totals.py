"""Orders -> counts and sums that the databases must say as well, by day and currency (MISSION Y6).

In SQL over the database of orders: the statuses are counts by `status`, `paid` is payment_id IS NOT NULL, and
`revenue_minor` the SUM of total_minor of those. `captured_minor` and `refunded_minor` are the sums that payments has
taken and given back. Rows of which orders has told nothing are counted apart, as `unknown`, and in no other count; what
was captured for them is in captured_minor, since the money is there.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from analytics.jobs.silver_orders import (
    AWAITING_SHIPMENT,
    CLOSED_STATUS,
    COMPLETED_STATUS,
    PENDING_PAYMENT,
    SHIPPED_STATUS,
    is_known_to_orders,
    is_paid,
)

_COUNTS = (
    "orders",
    "pending_payment",
    "awaiting_shipment",
    "shipped",
    "completed",
    "closed",
    "closed_expired",
    "closed_cancelled",
    "closed_seller_cancelled",
    "paid",
    "unknown",
)
_SUMS = ("revenue_minor", "captured_minor", "refunded_minor", "kept_minor")
ORDER_TOTALS = StructType(
    [
        StructField("day", DateType()),
        StructField("currency", StringType()),
        *(StructField(name, LongType()) for name in (*_COUNTS, *_SUMS)),
    ]
)


def order_totals(orders: DataFrame) -> DataFrame:
    """ORDER_TOTALS of ORDERS."""
    known = is_known_to_orders()
    paid = known & is_paid()
    counted = {
        "orders": known,
        "pending_payment": _has_status(PENDING_PAYMENT),
        "awaiting_shipment": _has_status(AWAITING_SHIPMENT),
        "shipped": _has_status(SHIPPED_STATUS),
        "completed": _has_status(COMPLETED_STATUS),
        "closed": _has_status(CLOSED_STATUS),
        "closed_expired": _is_closed_for("expired"),
        "closed_cancelled": _is_closed_for("cancelled"),
        "closed_seller_cancelled": _is_closed_for("seller-cancelled"),
        "paid": paid,
        "unknown": ~known,
    }
    grouped = orders.groupBy("day", "currency").agg(
        *(F.count_if(counted[name]).alias(name) for name in _COUNTS),
        F.sum(F.when(paid, F.coalesce("total_minor", F.lit(0))).otherwise(F.lit(0))).alias("revenue_minor"),
        F.sum("captured_minor").alias("captured_minor"),
        F.sum("refunded_minor").alias("refunded_minor"),
        F.sum(F.col("captured_minor") - F.col("refunded_minor")).alias("kept_minor"),
    )
    return grouped.select(*ORDER_TOTALS.names)


def _has_status(status: str) -> Column:
    return F.col("status") == status


def _is_closed_for(reason: str) -> Column:
    return _has_status(CLOSED_STATUS) & (F.col("close_reason") == reason)

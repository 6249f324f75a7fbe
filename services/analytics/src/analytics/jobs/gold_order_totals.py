"""Orders -> counts and sums that the databases must say as well, by day and currency (MISSION Y6).

Amounts of different currencies are never added: an order counts in the row of its currency, and each capture and refund
in the row of its own.

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
    paid = is_known_to_orders() & is_paid()
    money = orders.select(
        "day",
        "status",
        "close_reason",
        is_known_to_orders().alias("known"),
        paid.alias("paid"),
        F.inline(
            F.concat(
                F.array(_money(F.col("currency"), is_order=True, revenue_minor=F.when(paid, F.col("total_minor")))),
                _moved("captures", "captured_minor"),
                _moved("refunds", "refunded_minor"),
            )
        ),
    )
    known = F.col("known")
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
        "paid": F.col("paid"),
        "unknown": ~known,
    }
    grouped = money.groupBy("day", "currency").agg(
        *(F.count_if(F.col("is_order") & counted[name]).alias(name) for name in _COUNTS),
        *(F.sum(name).alias(name) for name in ("revenue_minor", "captured_minor", "refunded_minor")),
    )
    kept_minor = F.col("captured_minor") - F.col("refunded_minor")
    return grouped.withColumn("kept_minor", kept_minor).select(*ORDER_TOTALS.names)


def _money(currency: Column, *, is_order: bool, **minor: Column) -> Column:
    """The order itself, or something that was moved for it, in one currency."""
    amounts = {name: minor.get(name, F.lit(0)) for name in ("revenue_minor", "captured_minor", "refunded_minor")}
    return F.struct(
        currency.alias("currency"),
        F.lit(is_order).alias("is_order"),
        *(F.coalesce(amount, F.lit(0)).cast("bigint").alias(name) for name, amount in amounts.items()),
    )


def _moved(facts: str, name: str) -> Column:
    """What each fact of a column has moved; of the order's currency if it does not say one."""
    return F.transform(
        facts,
        lambda fact: _money(
            F.coalesce(fact["currency"], F.col("currency")), is_order=False, **{name: fact["amount_minor"]}
        ),
    )


def _has_status(status: str) -> Column:
    return F.col("status") == status


def _is_closed_for(reason: str) -> Column:
    return _has_status(CLOSED_STATUS) & (F.col("close_reason") == reason)

"""What became of the money of each payment of an order.

Invariant: the `accounts` of an order hold each payment once that anybody has named: payments by a capture or a refund,
orders by a request for a refund or as the payment that has paid the order.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def with_accounts(orders: DataFrame) -> DataFrame:
    """ORDERS and three more columns.

    `accounts`: array of (payment_id, capture, refunds, asked_minor, returned_minor, kept_minor, is_paying, is_open).
    `capture` and `kept_minor` are null for a payment whose capture nobody has told, `asked_minor` where orders has not
    asked for a refund. An account is open while it keeps money that orders has not asked back.
    `keeping`: how many accounts are open.
    `standing_id`: the payment that the order may keep. Orders names it, or it is the first that is open.
    """
    named = F.concat(
        F.transform(_some("captures"), lambda one: one.payment_id),
        F.transform(_some("refunds"), lambda one: one.payment_id),
        F.transform(_some("refund_requests"), lambda one: one.payment_id),
        F.array("payment_id"),
    )
    open_accounts = F.filter("accounts", lambda one: one.is_open)
    first_open = F.array_min(F.transform(open_accounts, lambda one: F.struct(one.capture.captured_at, one.payment_id)))
    return (
        orders.withColumn("accounts", F.transform(F.array_distinct(F.array_compact(named)), _moves))
        .withColumn("accounts", F.transform("accounts", _account))
        .withColumn("keeping", F.size(open_accounts))
        .withColumn("standing_id", F.coalesce(F.col("payment_id"), first_open.payment_id))
    )


def _moves(payment_id: Column) -> Column:
    """What was told of a payment."""
    of_this = {
        name: F.filter(_some(name), lambda one: one.payment_id == payment_id)
        for name in ("captures", "refunds", "refund_requests")
    }
    return F.struct(
        payment_id.alias("payment_id"),
        F.get(of_this["captures"], F.lit(0)).alias("capture"),
        of_this["refunds"].alias("refunds"),
        F.get(of_this["refund_requests"], F.lit(0)).amount_minor.alias("asked_minor"),
        F.aggregate(of_this["refunds"], F.lit(0).cast("bigint"), lambda sum_, one: sum_ + one.amount_minor).alias(
            "returned_minor"
        ),
        (payment_id == F.coalesce(F.col("payment_id"), F.lit(""))).alias("is_paying"),
    )


def _account(moves: Column) -> Column:
    kept_minor = moves.capture.amount_minor - moves.returned_minor
    is_open = F.coalesce(kept_minor > 0, F.lit(False)) & moves.asked_minor.isNull()
    return moves.withField("kept_minor", kept_minor).withField("is_open", is_open)


def _some(name: str) -> Column:
    """The array, empty where it is null."""
    return F.coalesce(F.col(name), F.array())

"""Reconciliation (MISSION Y7): what should not be, order by order. No rows is the daily proof.

Invariants: an order is judged by what silver knows of it, however late or often that was told; one fault is one
finding. What cannot be decided yet, or not at all, is no finding (reconciliation_accounts.py). Everything is decided
within an order's own row, but what only two orders together show: a payment or a refund that both have.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from analytics.jobs.reconciliation_accounts import DEFAULT_GRACE, Grace, Moment, with_accounts
from analytics.jobs.reconciliation_kinds import Kind, Rule, order_rules, payment_rules

FINDINGS = StructType(
    [
        StructField("kind", StringType(), nullable=False),
        StructField("order_id", StringType()),
        StructField("payment_id", StringType()),
        StructField("detail", StringType(), nullable=False),
        StructField("amount_minor", LongType()),  # what is at stake, in the order's currency; null where nothing is
        StructField("found_in", StringType(), nullable=False),
    ]
)
MESSAGES = "messages"


def reconcile(
    orders: DataFrame, *, as_of: datetime, since: datetime | None = None, grace: Grace = DEFAULT_GRACE
) -> DataFrame:
    """FINDINGS of silver orders (schema ORDERS), of which every message stored until `as_of` has been read.

    `since`: messages stored before it have not all been read, as when the queue no longer keeps them; None: all have.
    `grace` is how long what is under way may take; NO_GRACE for a shop that has come to rest. Raises ValueError for
    times without a zone.
    """
    moment = Moment(as_of, grace, since)
    return findings(orders, moment, MESSAGES).unionByName(_of_two_orders(orders.where(moment.is_heard_whole())))


def findings(orders: DataFrame, moment: Moment, found_in: str) -> DataFrame:
    """FINDINGS of orders, wherever they were heard of."""
    judged = with_accounts(orders).where(moment.is_heard_whole())
    payments = judged.select("*", F.explode("accounts").alias("account"))
    of_orders = found(judged, order_rules(moment), found_in)
    return of_orders.unionByName(found(payments, payment_rules(moment), found_in))


def _of_two_orders(orders: DataFrame) -> DataFrame:
    """FINDINGS: one for each payment that has paid several orders, and for each refund that is of several orders."""

    def named(kind: Kind, facts: Column, id_name: str) -> Column:
        return F.transform(
            facts,
            lambda one: F.struct(
                F.lit(kind.value).alias("kind"), one[id_name].alias("id"), one.payment_id, one.amount_minor
            ),
        )

    paying = F.filter("captures", lambda one: one.payment_id == F.col("payment_id"))
    both = F.concat(
        named(Kind.SAME_PAYMENT_OF_TWO_ORDERS, paying, "payment_id"),
        named(Kind.SAME_REFUND_OF_TWO_ORDERS, F.col("refunds"), "refund_id"),
    )
    counted = (
        orders.select("order_id", F.explode(both).alias("one"))
        .groupBy("one.kind", "one.id")
        .agg(
            F.count("*").alias("orders"),
            F.min("order_id").alias("order_id"),
            F.max("order_id").alias("other_id"),
            F.min("one.payment_id").alias("payment_id"),
            F.max("one.amount_minor").alias("amount_minor"),
        )
    )
    detail = F.format_string("%s is of %s orders, such as %s and %s", "id", "orders", "order_id", "other_id")
    columns = {"detail": detail, "found_in": F.lit(MESSAGES)}
    return counted.where(F.col("orders") > 1).withColumns(columns).select(*FINDINGS.names)


def found(rows: DataFrame, rules: Iterable[Rule], found_in: str) -> DataFrame:
    """FINDINGS: one for each row and rule whose condition is true. A condition that is null is not true."""
    candidates = [
        F.when(
            rule.condition,
            F.struct(
                F.lit(rule.kind.value).alias("kind"),
                F.col("order_id"),
                rule.payment_id.cast("string").alias("payment_id"),
                rule.detail.alias("detail"),
                rule.amount_minor.cast("bigint").alias("amount_minor"),
                F.lit(found_in).alias("found_in"),
            ),
        )
        for rule in rules
    ]
    return rows.select(F.explode(F.array_compact(F.array(*candidates))).alias("finding")).select("finding.*")

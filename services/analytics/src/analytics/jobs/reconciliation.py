"""Reconciliation (mechanism Y7): what should not be, order by order. No rows is the daily proof.

Invariants: an order is judged by what silver knows of it, however late or often that was told; one fault is one
finding. What cannot be decided yet, or not at all, is no finding (`Moment`). Everything is decided within an order's
own row, but what only two orders together show: a payment or a refund that both have.

`reconcile_books` judges the services' own databases, orders against payments against messages: rows of the tables
`orders` of orders and `payments` of payments, as many of their columns as are named here. Invariants: what the two
databases say of one order is judged by the same rules as what the messages say; and each order and payment is the same
in its database as in the messages, to the millisecond and the minor unit.

A payment's row does not say when money was asked back or went back. So a refund that is not done yet, and one of which
no message tells yet, are findings only in a shop that has come to rest (`as_of` is None).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from analytics.jobs.reconciliation_kinds import (
    DEFAULT_GRACE,
    NO_GRACE,
    Grace,
    Kind,
    Moment,
    Rule,
    order_rules,
    payment_rules,
    with_accounts,
)
from analytics.jobs.silver import ORDERS

MESSAGES = "messages"
ORDERS_AND_PAYMENTS = "orders and payments"
MESSAGES_AND_ORDERS = "messages and orders"
MESSAGES_AND_PAYMENTS = "messages and payments"
_ORDER_TIMES = ("created_at", "expires_at", "paid_at", "shipped_at", "completed_at", "closed_at")
_PAYMENT_MEMBERS = ("order_id", "amount_minor", "currency", "captured_at")

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

_REST = Moment(datetime(9999, 1, 1, tzinfo=UTC), NO_GRACE)
_ORDER_MEMBERS = ("status", "buyer_id", "total_minor", "currency", "payment_id", *_ORDER_TIMES)


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


def reconcile_books(
    orders: DataFrame,
    order_rows: DataFrame,
    payment_rows: DataFrame,
    *,
    as_of: datetime | None = None,
    grace: Grace = DEFAULT_GRACE,
) -> DataFrame:
    """FINDINGS of silver orders and the rows of both databases.

    `as_of`: when the databases were read, and until when every message has been; None if the shop had come to rest by
    then, so that nothing is under way and no grace is given. Raises ValueError for a time without a zone.
    """
    moment = _REST if as_of is None else Moment(as_of, grace)
    order_books, payment_books = _with_times(order_rows), _with_times(payment_rows)
    both = _as_orders(order_books, payment_books, orders)
    return (
        findings(both, moment, ORDERS_AND_PAYMENTS)
        .unionByName(_unfinished_refunds(payment_books, is_at_rest=as_of is None))
        .unionByName(_compared_orders(orders, order_books, moment))
        .unionByName(_compared_payments(orders, payment_books, moment, is_at_rest=as_of is None))
    )


def _with_times(rows: DataFrame) -> DataFrame:
    """Timestamps instead of milliseconds; `touched_at` is the last that the row names."""
    names = [name for name in rows.columns if name.endswith("_at_ms")]
    times = {name.removesuffix("_ms"): F.timestamp_millis(F.col(name).cast("bigint")) for name in names}
    past = [F.col(name) for name in times if name != "expires_at"]
    return rows.withColumns(times).drop(*names).withColumn("touched_at", F.greatest(*past, F.lit(None)))


def _as_orders(order_books: DataFrame, payment_books: DataFrame, orders: DataFrame) -> DataFrame:
    """What both databases say, with the columns of ORDERS; what payments has asked the gateway for counts as refunded.

    What is asked for is never given up, so that money which is about to go back is not money that stays nowhere.
    """
    taken = payment_books.where(F.col("captured_at").isNotNull())
    payments = taken.groupBy("order_id").agg(
        F.collect_list(_capture()).alias("captures"),
        F.collect_list(F.when(F.col("refund_requested_minor") > 0, _refund())).alias("refunds"),
        F.max("touched_at").alias("payments_touched_at"),
    )
    heard = orders.select("order_id", F.col("last_stored_at").alias("heard_at"))
    known = order_books.join(payments, "order_id", "full_outer").join(heard, "order_id", "left")
    unsaid = {name: F.lit(None).cast(ORDERS[name].dataType) for name in ORDERS.names if name not in known.columns}
    last_at = F.greatest("touched_at", "payments_touched_at", "heard_at")
    return known.withColumns(unsaid | {"last_stored_at": last_at}).select(*ORDERS.names)


def _capture() -> Column:
    """A payment's row as an element of ORDERS' `captures`."""
    return F.struct("payment_id", F.col("amount_minor").cast("bigint").alias("amount_minor"), "currency", "captured_at")


def _refund() -> Column:
    """What was asked back of a payment's row, as an element of ORDERS' `refunds`."""
    return F.struct(
        F.concat(F.lit("asked of "), "payment_id").alias("refund_id"),
        "payment_id",
        F.col("refund_requested_minor").cast("bigint").alias("amount_minor"),
        "currency",
        F.lit("asked for").alias("reason"),
        F.col("touched_at").alias("refunded_at"),
    )


def _unfinished_refunds(payment_books: DataFrame, *, is_at_rest: bool) -> DataFrame:
    rest_minor = F.col("refund_requested_minor") - F.col("refunded_minor")
    rule = Rule(
        Kind.REFUND_MISSING,
        F.lit(is_at_rest) & (rest_minor > 0),
        F.col("payment_id"),
        rest_minor,
        F.format_string("of %s asked for, %s went back", "refund_requested_minor", "refunded_minor"),
    )
    return found(payment_books, [rule], ORDERS_AND_PAYMENTS)


def _compared_orders(orders: DataFrame, order_books: DataFrame, moment: Moment) -> DataFrame:
    """The orders that were created, in messages and in the database of orders."""
    heard = orders.where(F.col("status").isNotNull()).select("order_id", "last_stored_at", *_ORDER_MEMBERS)
    sides = _side_by_side(heard, order_books.select("order_id", "touched_at", *_ORDER_MEMBERS), "order_id")
    quiet = moment.is_answered(F.greatest("heard.last_stored_at", "booked.touched_at"))
    return found(
        sides.withColumn("payment_id", F.lit(None).cast("string")),
        _comparison(
            quiet,
            (Kind.ORDER_ONLY_IN_BOOKS, Kind.ORDER_ONLY_IN_MESSAGES, Kind.ORDER_DIFFERS),
            F.coalesce("heard.total_minor", "booked.total_minor"),
            {name: F.lit(True) for name in _ORDER_MEMBERS},
        ),
        MESSAGES_AND_ORDERS,
    )


def _compared_payments(orders: DataFrame, payment_books: DataFrame, moment: Moment, *, is_at_rest: bool) -> DataFrame:
    """The captures, and what went back of each, in messages and in the database of payments."""
    members = (*_PAYMENT_MEMBERS, "refunded_minor")
    accounts = with_accounts(orders).select("order_id", "last_stored_at", F.explode("accounts").alias("account"))
    heard = accounts.where(F.col("account.capture").isNotNull()).select(
        "order_id",
        "last_stored_at",
        "account.payment_id",
        "account.capture.amount_minor",
        "account.capture.currency",
        "account.capture.captured_at",
        F.col("account.returned_minor").alias("refunded_minor"),
    )
    taken = payment_books.where(F.col("captured_at").isNotNull())
    # The message of a refund that the row has already may be under way.
    is_compared = F.lit(is_at_rest) | (F.col("heard.refunded_minor") > F.col("booked.refunded_minor"))
    sides = _side_by_side(heard, taken.select("payment_id", "touched_at", *members), "payment_id")
    return found(
        sides.withColumn("order_id", F.coalesce("heard.order_id", "booked.order_id")),
        _comparison(
            moment.is_answered(F.greatest("heard.last_stored_at", "booked.touched_at")),
            (Kind.PAYMENT_ONLY_IN_BOOKS, Kind.PAYMENT_ONLY_IN_MESSAGES, Kind.PAYMENT_DIFFERS),
            F.coalesce("heard.amount_minor", "booked.amount_minor"),
            {name: F.lit(True) for name in _PAYMENT_MEMBERS} | {"refunded_minor": is_compared},
        ),
        MESSAGES_AND_PAYMENTS,
    )


def _side_by_side(heard: DataFrame, booked: DataFrame, key: str) -> DataFrame:
    """`key`, and both sides as structs; null where a side does not have it."""
    sides = [
        rows.select(key, F.struct(*(name for name in rows.columns if name != key)).alias(side))
        for side, rows in (("heard", heard), ("booked", booked))
    ]
    return sides[0].join(sides[1], key, "full_outer")


def _comparison(
    quiet: Column, kinds: tuple[Kind, Kind, Kind], amount_minor: Column, is_compared: dict[str, Column]
) -> list[Rule]:
    """The rules of one kind of thing: it is missing on one side, or a member of it is another."""
    only_in_books, only_in_messages, differs = kinds
    differences = {
        name: is_so & ~F.col(f"heard.{name}").eqNullSafe(F.col(f"booked.{name}")) for name, is_so in is_compared.items()
    }
    is_both = F.col("heard").isNotNull() & F.col("booked").isNotNull()
    words = F.concat_ws("; ", *(F.when(differs_, _both_values(name)) for name, differs_ in differences.items()))
    return [
        Rule(kind, quiet & condition, F.col("payment_id"), amount_minor, detail)
        for kind, condition, detail in (
            (only_in_books, F.col("heard").isNull(), F.lit("no message tells of it")),
            (only_in_messages, F.col("booked").isNull(), F.lit("the database does not have it")),
            (differs, is_both & reduce(Column.__or__, differences.values()), words),
        )
    ]


def _both_values(name: str) -> Column:
    heard, booked = (F.coalesce(F.col(f"{side}.{name}").cast("string"), F.lit("none")) for side in ("heard", "booked"))
    return F.format_string(f"{name} is %s in messages and %s in the database", heard, booked)

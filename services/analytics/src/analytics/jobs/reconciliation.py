"""Reconciliation: what orders, payments and the queue say about the same money, compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from analytics.jobs.reconciliation_kinds import Kind, Rule, order_rules, payment_rules

# ----------------------------------------------------------------------------------------------------------------------
# When an order can be judged: what is under way is no fault before its time is over.
#
# Services tell each other things through the queue. Between the capture of a payment and the order that is marked as
# paid there is a moment in which the one is true and the other not yet; and a message that is stored now may tell of
# it. So an order is judged by what it lacks only when nothing has been heard of it for a grace; by what it has, at
# once.


# Longer than the time to pay and an outage of the services together; a capture may follow its order that late.
UNHEARD_BEFORE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Grace:
    """How long what is under way may take. Raises ValueError for less than nothing.

    `answer`: the other service's answer to a message, such as `paid` to `succeeded`; `refund`: from the request until
    the money is back, while the gateway may be down for a while; `closing`: from the end of an order's time to pay
    until it is closed.
    """

    answer: timedelta = timedelta(minutes=10)
    refund: timedelta = timedelta(hours=1)
    closing: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        if min(self.answer, self.refund, self.closing) < timedelta(0):
            raise ValueError("a grace is zero or more")


DEFAULT_GRACE = Grace()
NO_GRACE = Grace(timedelta(0), timedelta(0), timedelta(0))


@dataclass(frozen=True, slots=True)
class Moment:
    """As of when, with which grace, and since when, orders are judged. Raises ValueError for times without a zone."""

    as_of: datetime
    grace: Grace = field(default_factory=Grace)
    since: datetime | None = None

    def __post_init__(self) -> None:
        for name, at in (("as_of", self.as_of), ("since", self.since)):
            if at is not None and at.tzinfo is None:
                raise ValueError(f"{name} is {at}; a time with its zone is needed")

    def is_answered(self, last_at: Column | str = "last_stored_at") -> Column:
        """Whether the answer to the last thing heard of the order has had its time."""
        return self._is_over(F.col(last_at) if isinstance(last_at, str) else last_at, self.grace.answer)

    def is_refunded(self) -> Column:
        """Whether a refund has had its time since the last thing heard of the order."""
        return self._is_over(F.col("last_stored_at"), self.grace.refund)

    def is_expired(self) -> Column:
        """Whether the order should have been closed by now, had nobody paid."""
        return self._is_over(F.col("expires_at"), self.grace.closing)

    def is_heard_whole(self) -> Column:
        """Whether everything that was told of the order has been read.

        A refund may come long after its order, so an order that only refunds tell of is not judged. An order whose
        `created` was not read may have been created before `since`: it is judged when its first capture came more than
        UNHEARD_BEFORE after `since`.
        """
        if self.since is None:
            return F.lit(True)
        first_captured_at = F.array_min(F.transform("captures", lambda one: one.captured_at))
        began_at = F.coalesce(F.col("created_at"), first_captured_at - F.lit(UNHEARD_BEFORE))
        return began_at >= F.lit(self.since)

    def _is_over(self, begin: Column, grace: timedelta) -> Column:
        return begin <= F.lit(self.as_of - grace)


# ----------------------------------------------------------------------------------------------------------------------
# What became of the money of each payment of an order.
#
# Invariant: the `accounts` of an order hold each payment once that anybody has named: payments by a capture or a
# refund, orders by a request for a refund or as the payment that has paid the order.


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


# ----------------------------------------------------------------------------------------------------------------------
# Reconciliation (MISSION Y7): what should not be, order by order. No rows is the daily proof.
#
# Invariants: an order is judged by what silver knows of it, however late or often that was told; one fault is one
# finding. What cannot be decided yet, or not at all, is no finding (reconciliation_moment.py). Everything is decided
# within an order's own row, but what only two orders together show: a payment or a refund that both have.


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

"""What reconciliation compares with: the moment up to which everything was read, and the accounts of payments."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

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

"""What reconciliation goes by: the kinds of findings, the condition of each, and when an order can be judged.

What payments took, and what it gave back, has to fit what orders says of its orders. `is_answered` and `is_refunded`
stand where a service may still be about to act; the other conditions can never be true of a shop that does its work.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.jobs.silver import PENDING_PAYMENT

LATE_HOURS = (
    6  # longer than services that are down make an order wait; a payment that late is for the buyer to get back
)


class Kind(enum.StrEnum):
    """What is wrong with an order. The last six are of books only, the two before them of two orders."""

    PAID_NOT_MARKED = "paid-not-marked"
    CLOSED_CAPTURED_NOT_REFUNDED = "closed-captured-not-refunded"
    DOUBLE_CAPTURE = "double-capture"
    REFUND_MISSING = "refund-missing"
    REFUND_TWICE = "refund-twice"
    REFUND_MORE_THAN_CAPTURED = "refund-more-than-captured"
    PAID_WITHOUT_CAPTURE = "paid-without-capture"
    AMOUNT_MISMATCH = "amount-mismatch"
    CURRENCY_MISMATCH = "currency-mismatch"
    NEVER_CLOSED = "never-closed"
    CLOSED_EARLY = "closed-early"
    UNKNOWN_ORDER = "unknown-order"
    LINES_DO_NOT_ADD_UP = "lines-do-not-add-up"
    TERMS_MISSING = "terms-missing"
    TOLD_DIFFERENTLY = "told-differently"
    PAID_WITHOUT_PAYMENT = "paid-without-payment"
    PAID_AFTER_EXPIRY = "paid-after-expiry"
    CLOSED_LATE = "closed-late"
    CLOSED_AFTER_SHIPPING = "closed-after-shipping"
    SAME_PAYMENT_OF_TWO_ORDERS = "same-payment-of-two-orders"
    SAME_REFUND_OF_TWO_ORDERS = "same-refund-of-two-orders"

    ORDER_ONLY_IN_BOOKS = "order-only-in-books"
    ORDER_ONLY_IN_MESSAGES = "order-only-in-messages"
    ORDER_DIFFERS = "order-differs"
    PAYMENT_ONLY_IN_BOOKS = "payment-only-in-books"
    PAYMENT_ONLY_IN_MESSAGES = "payment-only-in-messages"
    PAYMENT_DIFFERS = "payment-differs"


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
        """Whether the order should have been closed by now, unless it was paid."""
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


# What became of the money of each payment of an order.
#
# Invariant: the `accounts` of an order hold each payment once that was named: payments by a capture or a refund, orders
# by a request for a refund or as the payment that has paid the order.


def with_accounts(orders: DataFrame) -> DataFrame:
    """ORDERS and three more columns.

    `accounts`: array of (payment_id, capture, refunds, asked_minor, returned_minor, kept_minor, is_paying, is_open).
    `capture` and `kept_minor` are null for a payment whose capture was not told, `asked_minor` where orders has not
    asked for a refund. An account is open while it keeps money that orders has not asked back. `keeping`: how many
    accounts are open. `standing_id`: the payment that the order may keep. Orders names it, or it is the first that is
    open.
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


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind, when a row is a finding of it, and what the finding says."""

    kind: Kind
    condition: Column
    payment_id: Column
    amount_minor: Column
    detail: Column


def order_rules(moment: Moment) -> list[Rule]:
    """The rules of an order as a whole."""
    is_known, nothing = _is_known(), _no_payment()
    lines_minor = F.aggregate(
        "lines", F.lit(0).cast("bigint"), lambda sum_, line: sum_ + line.quantity * line.unit_price_minor
    )
    first_capture = F.get("captures", F.lit(0))
    return [
        Rule(
            Kind.NEVER_CLOSED,
            is_known
            & (F.col("status") == PENDING_PAYMENT)
            & (F.col("keeping") == 0)
            & moment.is_expired()
            & moment.is_answered(),
            nothing,
            F.col("total_minor"),
            _said("still waits for its payment, which it could have had until %s", "expires_at"),
        ),
        Rule(
            Kind.CLOSED_EARLY,
            (F.col("close_reason") == "expired") & (F.col("closed_at") < F.col("expires_at")),
            nothing,
            F.col("total_minor"),
            _said("expired at %s, and could have been paid until %s", "closed_at", "expires_at"),
        ),
        Rule(
            Kind.UNKNOWN_ORDER,
            ~is_known & moment.is_answered(),
            F.coalesce(first_capture.payment_id, F.col("payment_id")),
            first_capture.amount_minor,
            F.lit("this order was never created"),
        ),
        Rule(
            Kind.LINES_DO_NOT_ADD_UP,
            is_known & F.col("lines").isNotNull() & ((lines_minor != F.col("total_minor")) | (F.size("lines") == 0)),
            nothing,
            F.col("total_minor") - lines_minor,
            _said("the total is %s, and the lines come to %s", "total_minor", lines_minor),
        ),
        *_story(moment),
    ]


def _story(moment: Moment) -> list[Rule]:
    """What no order of the shop can be told to be, whatever its money does."""
    terms = {
        "currency": F.col("currency").isNull(),
        "total_minor": F.col("total_minor").isNull(),
        "expires_at": F.col("expires_at").isNull(),
        "lines": F.col("lines").isNull() & F.col("events").isNotNull(),  # the books' rows have none
    }
    missing = F.array_compact(F.array(*(F.when(is_missing, F.lit(name)) for name, is_missing in terms.items())))
    went_on_at = F.coalesce("paid_at", "shipped_at", "completed_at")
    first_shipped_at = F.coalesce("shipped_at", "completed_at")
    paying = F.get(F.filter("captures", lambda one: one.payment_id == F.col("payment_id")), F.lit(0))
    late = F.expr(f"INTERVAL {LATE_HOURS} HOURS")
    return [
        _order_rule(
            Kind.TERMS_MISSING,
            _is_known() & (F.size(missing) > 0),
            _said("was created without %s", F.array_join(missing, ", ")),
        ),
        _order_rule(
            Kind.TOLD_DIFFERENTLY,
            F.size("disputed") > 0,
            _said("two events disagree about %s", F.array_join("disputed", ", ")),
        ),
        _order_rule(
            Kind.PAID_WITHOUT_PAYMENT,
            _is_known() & F.col("payment_id").isNull() & went_on_at.isNotNull() & moment.is_answered(),
            _said("went on at %s, and no payment is named that paid for it", went_on_at),
        ),
        _order_rule(
            Kind.PAID_AFTER_EXPIRY,
            paying.captured_at > F.col("expires_at") + late,
            _said("could be paid until %s, and was at %s", "expires_at", paying.captured_at),
        ),
        _order_rule(
            Kind.CLOSED_LATE,
            (F.col("close_reason") == "expired") & (F.col("closed_at") > F.col("expires_at") + late),
            _said("expired at %s, and was closed at %s", "expires_at", "closed_at"),
        ),
        _order_rule(
            Kind.CLOSED_AFTER_SHIPPING,
            F.col("closed_at").isNotNull() & first_shipped_at.isNotNull() & (F.col("keeping") == 0),
            _said("was shipped or completed at %s, and closed at %s", first_shipped_at, "closed_at"),
        ),
    ]


def _order_rule(kind: Kind, condition: Column, detail: Column) -> Rule:
    return Rule(kind, condition, _no_payment(), F.col("total_minor"), detail)


def payment_rules(moment: Moment) -> list[Rule]:
    """The rules of each payment of an order that was created: rows with one of its accounts in `account`."""
    return [*_lost_money(moment), *_refunds(moment), *_terms(moment)]


def _lost_money(moment: Moment) -> list[Rule]:
    """Money that was taken and stays nowhere."""
    is_standing = F.col("account.payment_id") == F.col("standing_id")
    is_kept = _is_known() & F.col("account.is_open") & moment.is_answered()
    kept_minor, captured_at = F.col("account.kept_minor"), "account.capture.captured_at"
    return [
        _rule(
            Kind.PAID_NOT_MARKED,
            is_kept & is_standing & (F.col("status") == PENDING_PAYMENT) & _has_currency() & _has_amount(),
            kept_minor,
            _said("captured at %s, and the order is not marked as paid", captured_at),
        ),
        _rule(
            Kind.CLOSED_CAPTURED_NOT_REFUNDED,
            is_kept & F.col("closed_at").isNotNull(),
            kept_minor,
            _said("captured at %s, the order closed at %s, and no refund was asked for", captured_at, "closed_at"),
        ),
        _rule(
            Kind.DOUBLE_CAPTURE,
            is_kept & F.col("closed_at").isNull() & ~is_standing,
            kept_minor,
            _said("captured at %s, besides payment %s of this order", captured_at, "standing_id"),
        ),
        _rule(
            Kind.PAID_WITHOUT_CAPTURE,
            _is_known() & F.col("account.is_paying") & F.col("account.capture").isNull() & moment.is_answered(),
            F.col("total_minor"),
            F.lit("the order was paid with it, and no capture is known"),
        ),
    ]


def _refunds(moment: Moment) -> list[Rule]:
    captured_minor, returned_minor = F.col("account.capture.amount_minor"), F.col("account.returned_minor")
    owed_minor = F.coalesce(captured_minor, F.col("account.asked_minor"))
    is_asked = F.col("account.asked_minor").isNotNull()
    taken_minor = F.coalesce(captured_minor, F.lit(0))
    # A refund of which no capture is known may have overtaken it; one that is larger than a known capture is wrong.
    is_too_much = (returned_minor > taken_minor) & (captured_minor.isNotNull() | moment.is_answered())
    # The same sum for the same reason: one refund that was made again. Two parts may be alike while they fit.
    likes = F.transform("account.refunds", lambda one: F.struct(one.amount_minor, one.reason))
    is_again = F.size(F.array_distinct(likes)) < F.size(likes)
    too_much = _said("%s went back of %s that were taken", returned_minor, taken_minor)
    return [
        _rule(
            Kind.REFUND_MISSING,
            _is_known() & is_asked & (returned_minor < owed_minor) & moment.is_refunded(),
            owed_minor - returned_minor,
            _said("orders asked for %s, and %s went back", "account.asked_minor", returned_minor),
        ),
        _rule(Kind.REFUND_TWICE, _is_known() & is_too_much & is_again, returned_minor - taken_minor, too_much),
        _rule(
            Kind.REFUND_MORE_THAN_CAPTURED,
            _is_known() & is_too_much & ~is_again,
            returned_minor - taken_minor,
            too_much,
        ),
    ]


def _terms(moment: Moment) -> list[Rule]:
    """Money that is not what the order costs. Amounts in two currencies cannot be compared."""
    is_first = (F.col("account.payment_id") == F.col("standing_id")) & F.col("account.is_open")
    # An order that is marked as paid has accepted the payment; one that still waits is about to reject it.
    is_accepted = F.col("account.is_paying")
    is_left = is_first & (F.col("status") == PENDING_PAYMENT) & moment.is_answered()
    is_judged = _is_known() & (is_accepted | is_left)
    captured_minor, currency = F.col("account.capture.amount_minor"), F.col("account.capture.currency")
    is_refunded_otherwise = F.exists("account.refunds", lambda one: one.currency != currency)
    return [
        _rule(
            Kind.AMOUNT_MISMATCH,
            is_judged & _has_currency() & ~_has_amount(),
            captured_minor - F.col("total_minor"),
            _said("%s were captured for an order of %s", captured_minor, "total_minor"),
        ),
        _rule(
            Kind.CURRENCY_MISMATCH,
            (is_judged & ~_has_currency()) | (_is_known() & is_refunded_otherwise),
            captured_minor,
            _said("captured in %s for an order in %s", currency, "currency"),
        ),
    ]


def _no_payment() -> Column:
    return F.lit(None).cast("string")


def _is_known() -> Column:
    return F.col("created_at").isNotNull()


def _has_amount() -> Column:
    return F.col("account.capture.amount_minor") == F.col("total_minor")


def _has_currency() -> Column:
    return F.col("account.capture.currency") == F.col("currency")


def _rule(kind: Kind, condition: Column, amount_minor: Column, detail: Column) -> Rule:
    return Rule(kind, condition, F.col("account.payment_id"), amount_minor, detail)


def _said(sentence: str, *parts: Column | str) -> Column:
    """The sentence with each %s replaced; "?" for what is not known."""
    texts = [F.coalesce((F.col(part) if isinstance(part, str) else part).cast("string"), F.lit("?")) for part in parts]
    return F.format_string(sentence, *texts)

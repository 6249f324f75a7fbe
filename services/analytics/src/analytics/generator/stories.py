"""The stories of orders: what was ordered, when, and what became of it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.generator.generation import Chance, Generation, fault, rank
from analytics.jobs.bronze import DAY_MS, HOUR_MS, MINUTE_MS
from analytics.jobs.reconciliation_kinds import LATE_HOURS, Kind

# The buyer of each order, its time, its lines, and its total.
#
# Invariants: the lines of an order are of different products in one currency, and come to its total unless its story is
# that they do not. Orders come in the order of their numbers; how many in which hour of the day is in HOUR_WEIGHTS.

PAYMENT_WINDOW_MS = 30 * 60_000
# Few at night, a peak at noon, and the highest in the evening.
HOUR_WEIGHTS = (5, 3, 2, 1, 1, 2, 4, 8, 12, 15, 17, 20, 24, 18, 15, 15, 16, 18, 22, 28, 34, 30, 18, 9)
LINES_MAX = 4
ORDERS_OF_A_BUYER = 5
PRICE_STEP_MINOR, PRICE_STEPS = 95, 400


def baskets(numbers: DataFrame, wanted: Generation) -> DataFrame:
    """One row per order: what `created` tells of it, and its rank, fault and story; `numbers` has `number`."""
    chance = Chance(wanted.seed)
    lines_minor = F.aggregate(
        "lines", F.lit(0).cast("bigint"), lambda sum_, line: sum_ + line.quantity * line.unit_price_minor
    )
    return (
        numbers.withColumn("rank", rank(F.col("number"), wanted.orders, wanted.seed))
        .withColumn("fault", fault(F.col("rank"), wanted.faults))
        .withColumn("story", story_of(F.col("fault"), F.col("rank"), chance))
        .withColumn("order_id", chance.hex_id("order"))
        .withColumn("buyer_id", _buyer_id(chance, wanted))
        .withColumn("currency", F.when(chance.happens("currency", 0.9), F.lit("CNY")).otherwise(F.lit("EUR")))
        .withColumn("created_ms", F.lit(wanted.start_ms) + _arrival_ms(chance, wanted))
        .withColumn("expires_ms", F.col("created_ms") + F.lit(PAYMENT_WINDOW_MS))
        .withColumn("lines", _lines(chance, wanted))
        .withColumn("total_minor", lines_minor + F.when(is_told(lambda one: one.is_total_wrong), 1).otherwise(0))
    )


def _arrival_ms(chance: Chance, wanted: Generation) -> Column:
    """Since the start: the orders spread over the days alike, and over the hours of a day by their weights."""
    place = (F.col("number") + chance.uniform("arrival")) * F.lit(wanted.days / wanted.orders)
    share = place - F.floor(place)
    bounds = [0.0, *(one / sum(HOUR_WEIGHTS) for one in accumulate(HOUR_WEIGHTS))]
    within_ms = F.when(F.lit(False), F.lit(0.0))
    for hour, (low, high) in enumerate(pairwise(bounds)):
        within_ms = within_ms.when(share < F.lit(high), (F.lit(hour) + (share - low) / (high - low)) * HOUR_MS)
    return F.floor(place) * F.lit(DAY_MS) + F.floor(F.coalesce(within_ms, F.lit(DAY_MS - 1.0)))


def _buyer_id(chance: Chance, wanted: Generation) -> Column:
    """Some buy more often than others."""
    buyers = max(1, wanted.orders // ORDERS_OF_A_BUYER)
    return F.concat(F.lit("buyer-"), F.floor(chance.uniform("buyer") ** 2 * F.lit(buyers)))


def _lines(chance: Chance, wanted: Generation) -> Column:
    """Of products that stand in equal steps from each other; the step is smaller than a LINES_MAX-th of all."""
    first = F.floor(chance.uniform("product") ** 2 * F.lit(wanted.products))  # the first ones sell best
    step = chance.between("step", 1, max(2, wanted.products // LINES_MAX))
    count = 1 + chance.soon("lines", 0.8, LINES_MAX)
    # One draw for the quantities of all lines, and another stretch of it for each.
    draw = chance.uniform("quantity")

    def line(number: Column) -> Column:
        product = F.pmod(first + number * step, F.lit(wanted.products))
        part = F.pmod(draw * 7.0 + number * 0.37, F.lit(1.0))
        price_minor = (1 + F.pmod(F.xxhash64(F.lit("price"), product), F.lit(PRICE_STEPS))) * PRICE_STEP_MINOR
        return F.struct(
            F.format_string("product-%s-%03d", F.lower("currency"), product).alias("product_id"),
            (1 + F.floor(part**4 * 3.0)).alias("quantity"),
            price_minor.alias("unit_price_minor"),
        )

    return F.transform(F.sequence(F.lit(0), count.cast("int") - 1), line)


# When the things of an order's story happen; null for what does not. Times are wall-clock milliseconds.
#
# Invariants: nothing is told before it has happened, and nothing before what it follows from; an order expires after
# its time to pay, by the timer that the broker delivers, unless its story is that it does not.

COMPLETED_AFTER_MS = 7 * DAY_MS
HOURS_LATE_MS = (LATE_HOURS + 1) * HOUR_MS
LATENESS_MEAN_MS, LATENESS_MAX_MS = 4.0, 900.0  # of the broker's timers


def moments(baskets: DataFrame, wanted: Generation) -> DataFrame:
    """The rows of `baskets` with the times of their stories, and their payments."""
    return _goods(_closings(_payments(baskets, Chance(wanted.seed)), Chance(wanted.seed)), Chance(wanted.seed))


def _payments(orders: DataFrame, chance: Chance) -> DataFrame:
    """The captures. Most buyers pay within minutes, some shortly before it is too late."""
    in_time_ms = F.col("created_ms") + 2_000 + chance.soon("pay", 4.0 * MINUTE_MS, PAYMENT_WINDOW_MS - 120_000)
    # Around the end of the time to pay; the gateway may take the money when orders has just closed.
    too_late_ms = F.col("expires_ms") + chance.between("pay late", -1_500, 3_000)
    captured_ms = (
        F.when(is_told(lambda one: one.is_captured_late), too_late_ms)
        .when(is_told(lambda one: one.is_hours_late), F.col("expires_ms") + HOURS_LATE_MS)
        .otherwise(in_time_ms)
    )
    captured_minor = F.floor(F.col("total_minor") * told(lambda one: one.captured_share)).cast("bigint")
    other_currency = F.when(F.col("currency") == "CNY", F.lit("EUR")).otherwise(F.lit("CNY"))
    return (
        orders.withColumn("payment_id", chance.hex_id("payment"))
        .withColumn("second_payment_id", chance.hex_id("second payment"))
        .withColumn("pay_ms", captured_ms)
        .withColumn("captured_ms", F.when(is_told(lambda one: one.is_captured), F.col("pay_ms")))
        .withColumn("captured_minor", captured_minor)
        .withColumn(
            "captured_currency",
            F.when(is_told(lambda one: one.is_other_currency), other_currency).otherwise(F.col("currency")),
        )
        .withColumn("paid_ms", F.when(is_told(lambda one: one.is_paid), F.col("pay_ms") + chance.soon("mark", 30, 900)))
        .withColumn(
            "second_captured_ms",
            F.when(is_told(lambda one: one.second is not None), F.col("pay_ms") + chance.between("again", 500, 60_000)),
        )
        .withColumn(
            "second_requested_ms",
            F.when(
                is_told(lambda one: one.second is Second.RETURNED),
                F.col("second_captured_ms") + chance.soon("reject", 40, 900),
            ),
        )
    )


def _closings(orders: DataFrame, chance: Chance) -> DataFrame:
    """The timer of every order, how it was closed, and what orders asked back then."""
    wait_ms = F.lit(PAYMENT_WINDOW_MS)
    lateness_ms = chance.soon("lateness", LATENESS_MEAN_MS, LATENESS_MAX_MS)
    cancelled_ms = F.col("created_ms") + chance.between("cancel", 5_000, PAYMENT_WINDOW_MS - 60_000)
    early_ms = F.col("expires_ms") - chance.between("early", 1, 5 * MINUTE_MS)
    return (
        orders.withColumn("close_reason", told(lambda one: one.close_reason))
        .withColumn("waiting_ms", F.col("created_ms") + 4 + chance.soon("schedule", 12, 400))
        .withColumn("due_ms", F.col("waiting_ms") + wait_ms)
        .withColumn("delivered_ms", F.col("due_ms") + lateness_ms)
        .withColumn(
            "closed_ms",
            F.when(is_told(lambda one: one.is_closed_early), early_ms)
            .when(is_told(lambda one: one.is_hours_late), F.col("expires_ms") + HOURS_LATE_MS)
            .when(F.col("close_reason") == "expired", F.col("delivered_ms") + 3 + chance.soon("close", 8, 400))
            .when(F.col("paid_ms").isNotNull(), F.col("paid_ms") + chance.between("recall", 5 * MINUTE_MS, DAY_MS))
            .otherwise(cancelled_ms),
        )
        .withColumn("closed_ms", F.when(F.col("close_reason").isNotNull(), F.col("closed_ms")))
        .withColumn("request_reason", told(lambda one: one.request_reason))
        .withColumn("requested_ms", _requested_ms(chance))
        .withColumn("returned_ms", _returned_ms(chance))
        .withColumn("second_returned_ms", F.col("second_requested_ms") + _gateway_ms(chance, "second refund"))
    )


def _requested_ms(chance: Chance) -> Column:
    """A payment that lost is rejected when it is heard of; the rest is asked back when the order is closed."""
    cause_ms = F.when(F.col("request_reason") == "wrong-amount", F.col("captured_ms")).otherwise(
        F.greatest("captured_ms", "closed_ms")
    )
    return F.when(F.col("request_reason").isNotNull(), cause_ms + chance.soon("ask", 40, 900))


def _returned_ms(chance: Chance) -> Column:
    """When the first refund is done: soon after it was asked for, or when an operator thought it right."""
    by_operator_ms = F.col("pay_ms") + chance.between("operator", HOUR_MS, 3 * DAY_MS)
    return F.coalesce(F.col("requested_ms") + _gateway_ms(chance, "refund"), by_operator_ms)


def _gateway_ms(chance: Chance, name: str) -> Column:
    return 150 + chance.soon(name, 2_000, 60_000)


def _goods(orders: DataFrame, chance: Chance) -> DataFrame:
    """Shipping, and completing by the buyer or by itself."""
    shipped_ms = F.col("paid_ms") + chance.between("ship", HOUR_MS, 3 * DAY_MS)
    received_ms = F.col("shipped_ms") + chance.between("receive", DAY_MS, COMPLETED_AFTER_MS)
    is_received = chance.happens("is received", 0.8)
    automatic_ms = F.col("shipped_ms") + F.lit(COMPLETED_AFTER_MS) + chance.soon("complete", 10, 900)
    return (
        orders.withColumn("shipped_ms", F.when(is_told(lambda one: one.is_shipped), shipped_ms))
        .withColumn("completed_ms", F.when(is_received, received_ms).otherwise(automatic_ms))
        .withColumn(
            "complete_reason", F.when(is_received, F.lit("received")).otherwise(F.lit("completed-automatically"))
        )
    )


# The stories that an order can live through, and how often: the table that the generator goes by.
#
# A story says which messages are told; when they are follows from chance (`moments`). What is wrong in a story is
# named by its fault, and is found by reconciliation as exactly one finding.


class Second(enum.Enum):
    """A second payment of the same order: rejected and given back, or kept."""

    RETURNED = "returned"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Story:
    """What happens to an order. `share` is of the orders without a fault; the shares need not come to 1.

    `refunds`: shares of what was captured that go back, one for each refund; at most two. `captured_share`: of the
    total. `request_reason`: why orders asks for the money of the payment; None: it does not ask.
    """

    name: str
    share: float = 0.0
    fault: Kind | None = None
    is_created: bool = True
    is_captured: bool = False
    is_paid: bool = False
    is_shipped: bool = False
    close_reason: str | None = None
    is_closed_early: bool = False
    is_captured_late: bool = False  # at about the end of the time to pay
    request_reason: str | None = None
    refunds: tuple[float, ...] = ()
    captured_share: float = 1.0
    is_other_currency: bool = False
    is_total_wrong: bool = False
    is_hours_late: bool = False  # paid, or closed because it expired, long after the end of the time to pay
    is_retold: bool = False  # `paid` tells another total than `created`
    has_no_expiry: bool = False
    has_no_payment: bool = False  # orders names none
    second: Second | None = None


# Paid, and on its way to its buyer; paid just when it was closed; and closed by its seller after it was paid.
BOUGHT = Story("bought", 68.0, is_captured=True, is_paid=True, is_shipped=True)
MISSED = Story(
    "missed",
    1.0,
    is_captured=True,
    is_captured_late=True,
    close_reason="expired",
    request_reason="order-closed",
    refunds=(1.0,),
)
SOLD = Story(
    "sold and cancelled",
    1.8,
    is_captured=True,
    is_paid=True,
    close_reason="seller-cancelled",
    request_reason="order-cancelled",
    refunds=(1.0,),
)

SOUND = (
    BOUGHT,
    replace(BOUGHT, name="waits for its shipment", share=3.0, is_shipped=False),
    replace(BOUGHT, name="given back in part", share=1.0, refunds=(0.3,)),
    replace(BOUGHT, name="given back in parts", share=0.3, refunds=(0.25, 0.5)),
    replace(BOUGHT, name="given back whole", share=0.3, refunds=(1.0,)),
    replace(BOUGHT, name="paid twice", share=0.3, second=Second.RETURNED),
    MISSED,
    SOLD,
    replace(SOLD, name="sold, given back in part, and cancelled", share=0.2, refunds=(0.4, 0.6)),
    Story("expired", 19.0, close_reason="expired"),
    Story("cancelled", 4.0, close_reason="cancelled"),
    Story("cancelled by its seller", 0.5, close_reason="seller-cancelled"),
    replace(
        MISSED,
        name="wrong amount",
        share=0.3,
        is_captured_late=False,
        captured_share=0.9,
        request_reason="wrong-amount",
    ),
)


def _with(fault: Kind, name: str, story: Story, **changes: Any) -> Story:
    return replace(story, name=name, share=0.0, fault=fault, **changes)


FAULTY = (
    Story("not marked", fault=Kind.PAID_NOT_MARKED, is_captured=True),
    _with(Kind.CLOSED_CAPTURED_NOT_REFUNDED, "missed, not asked", MISSED, request_reason=None, refunds=()),
    _with(Kind.CLOSED_CAPTURED_NOT_REFUNDED, "sold, not asked", SOLD, request_reason=None, refunds=()),
    _with(Kind.DOUBLE_CAPTURE, "captured twice", BOUGHT, second=Second.KEPT),
    _with(Kind.REFUND_MISSING, "missed, not given back", MISSED, refunds=()),
    _with(Kind.REFUND_MISSING, "sold, not given back", SOLD, refunds=()),
    _with(Kind.REFUND_MISSING, "sold, given back in part only", SOLD, refunds=(0.5,)),
    _with(Kind.REFUND_TWICE, "missed, given back twice", MISSED, refunds=(1.0, 1.0)),
    _with(Kind.REFUND_TWICE, "sold, given back twice", SOLD, refunds=(1.0, 1.0)),
    _with(Kind.REFUND_MORE_THAN_CAPTURED, "given back too much", BOUGHT, refunds=(1.2,)),
    _with(Kind.REFUND_MORE_THAN_CAPTURED, "given back too much in parts", BOUGHT, refunds=(0.6, 0.7)),
    _with(Kind.PAID_WITHOUT_CAPTURE, "not captured", BOUGHT, is_captured=False),
    _with(Kind.AMOUNT_MISMATCH, "captured too little", BOUGHT, captured_share=0.5),
    _with(Kind.AMOUNT_MISMATCH, "captured too much", BOUGHT, captured_share=1.5),
    _with(Kind.CURRENCY_MISMATCH, "captured in another currency", BOUGHT, is_other_currency=True),
    Story("never closed", fault=Kind.NEVER_CLOSED),
    Story("closed early", fault=Kind.CLOSED_EARLY, close_reason="expired", is_closed_early=True),
    Story("never created", fault=Kind.UNKNOWN_ORDER, is_created=False, is_captured=True),
    _with(Kind.LINES_DO_NOT_ADD_UP, "bought, added up wrongly", BOUGHT, is_total_wrong=True),
    Story("expired, added up wrongly", fault=Kind.LINES_DO_NOT_ADD_UP, close_reason="expired", is_total_wrong=True),
    _with(Kind.TERMS_MISSING, "bought, without an expiry", BOUGHT, has_no_expiry=True),
    Story("created without an expiry", fault=Kind.TERMS_MISSING, has_no_expiry=True),
    _with(Kind.TOLD_DIFFERENTLY, "bought for another total", BOUGHT, is_retold=True),
    _with(Kind.PAID_WITHOUT_PAYMENT, "shipped, and not paid", BOUGHT, is_captured=False, has_no_payment=True),
    _with(Kind.PAID_AFTER_EXPIRY, "bought hours too late", BOUGHT, is_hours_late=True),
    Story("expired hours too late", fault=Kind.CLOSED_LATE, close_reason="expired", is_hours_late=True),
    _with(Kind.CLOSED_AFTER_SHIPPING, "sold, cancelled, and shipped", SOLD, is_shipped=True),
)
STORIES = (*SOUND, *FAULTY)
FAULTS = tuple(dict.fromkeys(story.fault for story in FAULTY if story.fault is not None))


def story_of(fault: Column, rank: Column, chance: Chance) -> Column:
    """The name of an order's story: one of its fault's in turn, or one of the sound ones by their shares."""
    chosen = F.when(F.lit(False), F.lit(""))
    for kind in FAULTS:
        names = [story.name for story in FAULTY if story.fault is kind]
        turn = F.pmod(rank, F.lit(len(names))).cast("int")
        chosen = chosen.when(fault == kind.value, F.get(F.array(*map(F.lit, names)), turn))
    draw = chance.uniform("story") * F.lit(sum(story.share for story in SOUND))
    bound = 0.0
    for story in SOUND[:-1]:
        bound += story.share
        chosen = chosen.when(draw < F.lit(bound), F.lit(story.name))
    return chosen.otherwise(F.lit(SOUND[-1].name))


def is_told(condition: Callable[[Story], bool]) -> Column:
    """Whether the row's story is one of those for which the condition holds."""
    return F.col("story").isin([story.name for story in STORIES if condition(story)])


def told(member: Callable[[Story], object]) -> Column:
    """The member of the row's story; null where it is None."""
    by_value: dict[object, list[str]] = {}
    for story in STORIES:
        if (value := member(story)) is not None:
            by_value.setdefault(value, []).append(story.name)
    chosen = F.when(F.lit(False), F.lit(None))
    for value, names in by_value.items():
        chosen = chosen.when(F.col("story").isin(names), F.lit(value))
    return chosen

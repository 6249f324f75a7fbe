"""When the things of an order's story happen; null for what does not. Times are wall-clock milliseconds.

Invariants: nothing is told before it has happened, and nothing before what it follows from; an order expires after its
time to pay, by the timer that the broker delivers, unless its story is that it does not.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.generator.baskets import PAYMENT_WINDOW_MS
from analytics.generator.chance import Chance
from analytics.generator.generation import Generation
from analytics.generator.stories import Second, is_told, told
from analytics.jobs.reconciliation_kinds import LATE_HOURS
from analytics.jobs.times import DAY_MS, HOUR_MS, MINUTE_MS

COMPLETED_AFTER_MS = 7 * DAY_MS
HOURS_LATE_MS = (LATE_HOURS + 1) * HOUR_MS
LATENESS_MEAN_MS, LATENESS_MAX_MS = 4.0, 900.0  # of the broker's timers


def moments(baskets: DataFrame, wanted: Generation) -> DataFrame:
    """The rows of baskets.py with the times of their stories, and their payments."""
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
                F.col("second_captured_ms") + chance.soon("refuse", 40, 900),
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
    """A payment that lost is refused when it is heard of; the rest is asked back when the order is closed."""
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

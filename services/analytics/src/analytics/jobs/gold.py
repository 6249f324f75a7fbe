"""The gold tables, and by name what a program needs to make and keep all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from analytics.events import VERSION_KNOWN
from analytics.jobs.bronze import DAY_MS, HOUR_MS, MINUTE_MS, start_of, utc_day
from analytics.jobs.gold_durations import (
    CLOSE_LATENESS,
    LATENESS_CLASSES,
    TIME_TO_PAY,
    close_lateness,
    lateness_classes,
    time_to_pay,
)
from analytics.jobs.silver import (
    AWAITING_SHIPMENT,
    CLOSED_STATUS,
    COMPLETED_STATUS,
    PENDING_PAYMENT,
    SHIPPED_STATUS,
    is_closed,
    is_known_to_orders,
    is_paid,
)

# Orders -> how many were left unpaid, by the hour and by the day in which they were created (mechanism Y6).
#
# Abandoned is what was closed without ever having been paid, for whatever reason; what still waits for its payment is
# neither abandoned nor paid. The rate is abandoned / created.

ABANDONED_RATE = StructType(
    [
        StructField("day", DateType()),
        StructField("period", StringType()),
        StructField("starts_at", TimestampType()),
        StructField("created", LongType()),
        StructField("paid", LongType()),
        StructField("abandoned", LongType()),
        StructField("waiting", LongType()),
        StructField("rate", DoubleType()),
    ]
)

PERIODS = (("hour", HOUR_MS), ("day", DAY_MS))


def abandoned_rate(orders: DataFrame) -> DataFrame:
    """ABANDONED_RATE of those ORDERS whose `created` was told."""
    periods = F.array(
        *(
            F.struct(F.lit(name).alias("period"), start_of("created_at", length_ms).alias("starts_at"))
            for name, length_ms in PERIODS
        )
    )
    known = orders.where(F.col("created_at").isNotNull()).select(
        is_paid().alias("is_paid"), is_closed().alias("is_closed"), F.inline(periods)
    )
    paid, closed = F.col("is_paid"), F.col("is_closed")
    grouped = known.groupBy("period", "starts_at").agg(
        F.count("*").alias("created"),
        F.count_if(paid).alias("paid"),
        F.count_if(~paid & closed).alias("abandoned"),
        F.count_if(~paid & ~closed).alias("waiting"),
    )
    rated = grouped.withColumns({"day": utc_day("starts_at"), "rate": F.try_divide("abandoned", "created")})
    return rated.select(*ABANDONED_RATE.names)


# What was read -> how many events of which kind and version there were, and how many could not be read (mechanism Y6).
#
# Messages are counted, so an event that was told twice counts twice; give it unique bronze. `outcome` is `read`,
# `newer` (of a version later than this program knows: read for what it still has), or `rejected`, which has no version.

EVENT_COUNTS = StructType(
    [
        StructField("day", DateType()),
        StructField("topic", StringType()),
        StructField("kind", StringType()),
        StructField("version", IntegerType()),
        StructField("outcome", StringType()),
        StructField("messages", LongType()),
    ]
)


def event_counts(read: DataFrame) -> DataFrame:
    """EVENT_COUNTS of what events.read_bodies has read, by the day on which the broker stored it."""
    is_event = F.col("problem").isNull()
    counted = read.groupBy(
        utc_day("stored_at").alias("day"),
        "topic",
        "kind",
        F.when(is_event, F.col("version")).alias("version"),
        F.when(~is_event, "rejected")
        .when(F.col("version") > VERSION_KNOWN, "newer")
        .otherwise("read")
        .alias("outcome"),
    ).agg(F.count("*").alias("messages"))
    return counted.select(*EVENT_COUNTS.names)


# Orders -> how many of a day's orders came how far (mechanism Y6).
#
# An order counts in a step if it got there, also if it was closed afterwards; a later step implies the earlier ones.

FUNNEL = StructType(
    [
        StructField("day", DateType()),
        StructField("step_number", IntegerType()),
        StructField("step", StringType()),
        StructField("orders", LongType()),
        StructField("share_of_created", DoubleType()),
        StructField("share_of_step_before", DoubleType()),
    ]
)

STEPS = ("created", "paid", "shipped", "completed")


def funnel(orders: DataFrame) -> DataFrame:
    """FUNNEL of ORDERS: four rows to each day on which orders were created."""
    reached = {
        "created": is_known_to_orders(),
        "paid": is_paid(),
        "shipped": F.coalesce("shipped_at", "completed_at").isNotNull(),
        "completed": F.col("completed_at").isNotNull(),
    }
    known = orders.where(is_known_to_orders())
    counted = known.groupBy("day").agg(*(F.count_if(reached[step]).alias(step) for step in STEPS))
    rows = F.array(*(_row(number, step) for number, step in enumerate(STEPS, start=1)))
    return counted.select("day", F.inline(rows)).select(*FUNNEL.names)


def _row(number: int, step: str) -> Column:
    before = STEPS[max(0, number - 2)]
    return F.struct(
        F.lit(number).alias("step_number"),
        F.lit(step).alias("step"),
        F.col(step).alias("orders"),
        F.try_divide(step, "created").alias("share_of_created"),
        F.try_divide(step, before).alias("share_of_step_before"),
    )


# Orders -> counts and sums that the databases must say as well, by day and currency (mechanism Y6).
#
# Amounts of different currencies are never added: an order counts in the row of its currency, and each capture and
# refund in the row of its own.
#
# In SQL over the database of orders: the statuses are counts by `status`, `paid` is payment_id IS NOT NULL, and
# `revenue_minor` the SUM of total_minor of those. `captured_minor` and `refunded_minor` are the sums that payments has
# taken and given back. Rows of which orders has told nothing are counted apart, as `unknown`, and in no other count;
# what was captured for them is in captured_minor, since the money is there.

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


# Orders -> what was sold in each minute, by product (mechanism Y6).
#
# An order counts in the minute in which its buyer paid, with its lines as they were ordered. It goes on counting if its
# seller cancels it later: what went back is in order_totals. The revenue of all rows is that of order_totals.

REVENUE_PER_MINUTE = StructType(
    [
        StructField("day", DateType()),
        StructField("minute", TimestampType()),
        StructField("product_id", StringType()),
        StructField("currency", StringType()),
        StructField("orders", LongType()),
        StructField("units", LongType()),
        StructField("revenue_minor", LongType()),
    ]
)


def revenue_per_minute(orders: DataFrame) -> DataFrame:
    """REVENUE_PER_MINUTE of ORDERS: minutes without a paid order have no row."""
    paid = orders.where(F.col("paid_at").isNotNull()).select(
        start_of("paid_at", MINUTE_MS).alias("minute"),
        "currency",
        F.col("lines.product_id").alias("product_ids"),
        F.posexplode("lines").alias("position", "line"),
    )
    # Of several lines of one product the first counts the order.
    is_first = F.array_position("product_ids", F.col("line.product_id")) == F.col("position") + 1
    grouped = paid.groupBy("minute", F.col("line.product_id").alias("product_id"), "currency").agg(
        F.count_if(is_first).alias("orders"),
        F.sum("line.quantity").alias("units"),
        F.sum(F.col("line.quantity") * F.col("line.unit_price_minor")).alias("revenue_minor"),
    )
    return grouped.withColumn("day", utc_day("minute")).select(*REVENUE_PER_MINUTE.names)


# Orders -> what became of the units that were ordered, by product and the day of the order (mechanism Y6).
#
#     reserved = sold + released + waiting        sold = kept + taken back
#
# Over all days `waiting` is the product's `reserved` in the database of orders, and `kept` its `sold`. A line of an
# order that was told without its lines is not known.

STOCK_TURNOVER = StructType(
    [
        StructField("day", DateType()),
        StructField("product_id", StringType()),
        StructField("units_reserved", LongType()),
        StructField("units_sold", LongType()),
        StructField("units_released", LongType()),
        StructField("units_waiting", LongType()),
        StructField("units_taken_back", LongType()),
        StructField("units_kept", LongType()),
    ]
)


def stock_turnover(orders: DataFrame) -> DataFrame:
    """STOCK_TURNOVER of ORDERS."""
    known = orders.where(is_known_to_orders()).select(
        "day", is_paid().alias("paid"), is_closed().alias("closed"), F.inline("lines")
    )
    paid, closed = F.col("paid"), F.col("closed")
    grouped = known.groupBy("day", "product_id").agg(
        F.sum("quantity").alias("units_reserved"),
        _units(paid).alias("units_sold"),
        _units(~paid & closed).alias("units_released"),
        _units(~paid & ~closed).alias("units_waiting"),
        _units(paid & closed).alias("units_taken_back"),
        _units(paid & ~closed).alias("units_kept"),
    )
    return grouped.select(*STOCK_TURNOVER.names)


def _units(counted: Column) -> Column:
    return F.sum(F.when(counted, F.col("quantity")).otherwise(F.lit(0).cast("long")))


# The gold tables by name: what a program needs to make and keep all of them.
#
# A table that has a column `day` is kept in partitions by it.


@dataclass(frozen=True, slots=True)
class GoldInputs:
    """What the gold tables are made from: silver, and what events.read_bodies has read."""

    read: DataFrame
    orders: DataFrame
    timers: DataFrame


@dataclass(frozen=True, slots=True)
class GoldTable:
    """A table: its name in the warehouse, its schema, and the job that makes it."""

    name: str
    schema: StructType
    make: Callable[[GoldInputs], DataFrame]


GOLD_TABLES = (
    GoldTable("order_totals", ORDER_TOTALS, lambda inputs: order_totals(inputs.orders)),
    GoldTable("funnel", FUNNEL, lambda inputs: funnel(inputs.orders)),
    GoldTable("revenue_per_minute", REVENUE_PER_MINUTE, lambda inputs: revenue_per_minute(inputs.orders)),
    GoldTable("time_to_pay", TIME_TO_PAY, lambda inputs: time_to_pay(inputs.orders)),
    GoldTable("close_lateness", CLOSE_LATENESS, lambda inputs: close_lateness(inputs.orders, inputs.timers)),
    GoldTable("lateness_classes", LATENESS_CLASSES, lambda inputs: lateness_classes(inputs.orders, inputs.timers)),
    GoldTable("stock_turnover", STOCK_TURNOVER, lambda inputs: stock_turnover(inputs.orders)),
    GoldTable("abandoned_rate", ABANDONED_RATE, lambda inputs: abandoned_rate(inputs.orders)),
    GoldTable("event_counts", EVENT_COUNTS, lambda inputs: event_counts(inputs.read)),
)

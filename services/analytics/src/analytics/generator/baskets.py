"""Who orders when, what, and for how much.

Invariants: the lines of an order are of different products in one currency, and come to its total unless its story is
that they do not. Orders come in the order of their numbers; how many in which hour of the day is in HOUR_WEIGHTS.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.generator import faults
from analytics.generator.chance import Chance
from analytics.generator.generation import Generation
from analytics.generator.stories import is_told, story_of
from analytics.jobs.times import DAY_MS, HOUR_MS

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
        numbers.withColumn("rank", faults.rank(F.col("number"), wanted.orders, wanted.seed))
        .withColumn("fault", faults.fault(F.col("rank"), wanted.faults))
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

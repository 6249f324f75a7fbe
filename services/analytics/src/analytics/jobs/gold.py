"""The gold tables by name: what a program needs to make and keep all of them.

A table that has a column `day` is kept in partitions by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from analytics.jobs.gold_abandoned_rate import ABANDONED_RATE, abandoned_rate
from analytics.jobs.gold_close_lateness import CLOSE_LATENESS, LATENESS_CLASSES, close_lateness, lateness_classes
from analytics.jobs.gold_event_counts import EVENT_COUNTS, event_counts
from analytics.jobs.gold_funnel import FUNNEL, funnel
from analytics.jobs.gold_order_totals import ORDER_TOTALS, order_totals
from analytics.jobs.gold_revenue_per_minute import REVENUE_PER_MINUTE, revenue_per_minute
from analytics.jobs.gold_stock_turnover import STOCK_TURNOVER, stock_turnover
from analytics.jobs.gold_time_to_pay import TIME_TO_PAY, time_to_pay


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

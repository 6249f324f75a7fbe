"""Tables -> the document of a report: numbers, texts and lists, as they stand in summary.json.

Two accounts of the same things stand side by side in it: messages and databases, lateness and the broker's own.
Invariant: whatever can be large is brought to a bounded size by Spark before it comes to this process: periods to
`BUCKETS_MAX`, products and findings to the first ones, distributions to the broker's classes of lateness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.adapters import Books
from analytics.jobs.bronze import elapsed_ms, start_of
from analytics.jobs.gold import EVENT_COUNTS, FUNNEL, ORDER_TOTALS, STOCK_TURNOVER
from analytics.jobs.gold_durations import (
    CLOSE_LATENESS,
    LATENESS_CLASSES,
    ORDER_CLOSED,
    TIMER_DELIVERED,
    class_to_ms,
    quantiles,
)
from analytics.jobs.silver import (
    AWAITING_SHIPMENT,
    CLOSED_STATUS,
    COMPLETED_STATUS,
    PENDING_PAYMENT,
    SHIPPED_STATUS,
    is_closed,
    is_paid,
)
from analytics.warehouse import Warehouse

BUCKETS_MAX = 120
BUCKETS_S = (1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800, 2_592_000, 31_536_000)
PRODUCTS_MAX, FINDINGS_MAX = 50, 100
PRODUCTS_DRAWN_MAX = 7
OTHERS = "others"
ROUNDING_MS = 2  # rounded down, and a moment later up

STATUSES = {
    "pending_payment": PENDING_PAYMENT,
    "awaiting_shipment": AWAITING_SHIPMENT,
    "shipped": SHIPPED_STATUS,
    "completed": COMPLETED_STATUS,
    "closed": CLOSED_STATUS,
}


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one warehouse, as the report reads them."""

    spark: SparkSession
    warehouse: Warehouse
    orders: DataFrame

    def figures(self) -> dict[str, Any]:
        """Everything that is counted."""
        bucket_s = self._bucket_s()
        return {
            "messages": self._messages(),
            "totals": self._totals(),
            "funnel": self._funnel(),
            "orders_over_time": {"bucket_s": bucket_s, "points": self._orders_over_time(bucket_s)},
            "revenue_over_time": self._revenue_over_time(bucket_s),
            "abandoned_over_time": {"bucket_s": bucket_s, "points": self._abandoned_over_time(bucket_s)},
            "time_to_pay": self._time_to_pay(),
            "close_lateness": self._lateness(ORDER_CLOSED),
            "timers": self.timers(),
            "delivery": {"curve": self._curve(F.col("measure") == TIMER_DELIVERED)},
            "stock": self._stock(),
        }

    def timers(self) -> list[dict[str, Any]]:
        """How late the broker delivered, by delay level."""
        late = self.warehouse.read(self.spark, self.warehouse.gold("close_lateness"), CLOSE_LATENESS)
        levels = late.where(F.col("measure") == TIMER_DELIVERED).drop("measure")
        classed = levels.withColumns({f"{name}_to_ms": class_to_ms(f"{name}_ms") for name in ("p50", "p99")})
        return [row.asDict() for row in classed.orderBy("level").collect()]

    def _messages(self) -> dict[str, Any]:
        counts = self.warehouse.read(self.spark, self.warehouse.gold("event_counts"), EVENT_COUNTS)
        rows = counts.groupBy("topic", "kind", "outcome").agg(F.sum("messages").alias("messages"))
        found = [row.asDict() for row in rows.orderBy("topic", "kind", "outcome").limit(PRODUCTS_MAX).collect()]
        (sums,) = counts.groupBy().pivot("outcome", ["read", "newer", "rejected"]).agg(F.sum("messages")).collect()
        return {"by_kind": found, **{name: sums[name] or 0 for name in ("read", "newer", "rejected")}}

    def _totals(self) -> list[dict[str, Any]]:
        """By currency; an order without a known currency is in a row of its own."""
        totals = self.warehouse.read(self.spark, self.warehouse.gold("order_totals"), ORDER_TOTALS)
        names = [name for name in ORDER_TOTALS.names if name not in ("day", "currency")]
        summed = totals.groupBy("currency").agg(*(F.sum(name).alias(name) for name in names))
        return [row.asDict() for row in summed.orderBy(F.desc("orders"), "currency").limit(PRODUCTS_MAX).collect()]

    def _funnel(self) -> list[dict[str, Any]]:
        funnel = self.warehouse.read(self.spark, self.warehouse.gold("funnel"), FUNNEL)
        steps = funnel.groupBy("step_number", "step").agg(F.sum("orders").alias("orders")).orderBy("step_number")
        return [{"step": row["step"], "orders": row["orders"]} for row in steps.collect()]

    def _bucket_s(self) -> int:
        """A period so long that there are not too many of them."""
        times = [F.unix_millis(name) for name in ("created_at", "paid_at", "closed_at")]
        (row,) = self.orders.agg(
            F.min(F.least(*times)).alias("first"), F.max(F.greatest(*times)).alias("last")
        ).collect()
        seconds = 0 if row["first"] is None else (row["last"] - row["first"]) / 1_000
        return next((one for one in BUCKETS_S if seconds / one <= BUCKETS_MAX), BUCKETS_S[-1])

    def _orders_over_time(self, bucket_s: int) -> list[dict[str, Any]]:
        moments = F.array(
            *(
                F.struct(F.col(f"{name}_at").alias("moment"), F.lit(name).alias("what"))
                for name in ("created", "paid", "closed")
            )
        )
        told = self.orders.select(F.inline(moments)).where(F.col("moment").isNotNull())
        counted = told.groupBy(start_of("moment", bucket_s * 1_000).alias("at"))
        names = ("created", "paid", "closed")
        rows = counted.pivot("what", list(names)).agg(F.count("what")).orderBy("at").limit(10 * BUCKETS_MAX).collect()
        return [{"at": _iso(row["at"]), **{name: row[name] or 0 for name in names}} for row in rows]

    def _revenue_over_time(self, bucket_s: int) -> dict[str, Any]:
        """Of the currency in which most was taken; the products that brought most, and the others in one."""
        lines = self.orders.where(F.col("paid_at").isNotNull()).select("paid_at", "currency", F.inline("lines"))
        sold = lines.withColumn("revenue_minor", F.col("quantity") * F.col("unit_price_minor"))
        taken = sold.groupBy("currency").agg(F.sum("revenue_minor").alias("sum")).orderBy(F.desc("sum"), "currency")
        first = taken.limit(1).collect()
        if not first:
            return {"bucket_s": bucket_s, "currency": "", "products": [], "others": OTHERS, "points": []}
        own = sold.where(F.col("currency").eqNullSafe(first[0]["currency"]))
        best = own.groupBy("product_id").agg(F.sum("revenue_minor").alias("sum")).orderBy(F.desc("sum"), "product_id")
        rows = best.limit(PRODUCTS_DRAWN_MAX + 1).collect()
        names = [row["product_id"] for row in rows[:PRODUCTS_DRAWN_MAX]]
        named = F.when(F.col("product_id").isin(names), F.col("product_id")).otherwise(F.lit(OTHERS))
        grouped = own.groupBy(start_of("paid_at", bucket_s * 1_000).alias("at"), named.alias("product"))
        summed = grouped.agg(F.sum("revenue_minor").alias("sum")).groupBy("at")
        points = summed.agg(F.map_from_entries(F.collect_list(F.struct("product", "sum"))).alias("revenue_minor"))
        return {
            "bucket_s": bucket_s,
            "currency": first[0]["currency"],
            "products": names + ([OTHERS] if len(rows) > PRODUCTS_DRAWN_MAX else []),
            "others": OTHERS,
            "points": [
                {"at": _iso(row["at"]), "revenue_minor": dict(sorted(row["revenue_minor"].items()))}
                for row in points.orderBy("at").limit(10 * BUCKETS_MAX).collect()
            ],
        }

    def _abandoned_over_time(self, bucket_s: int) -> list[dict[str, Any]]:
        known = self.orders.where(F.col("created_at").isNotNull())
        grouped = known.groupBy(start_of("created_at", bucket_s * 1_000).alias("at")).agg(
            F.count("*").alias("created"), F.count_if(~is_paid() & is_closed()).alias("abandoned")
        )
        rows = grouped.orderBy("at").limit(10 * BUCKETS_MAX).collect()
        return [{"at": _iso(row["at"]), "created": row["created"], "abandoned": row["abandoned"]} for row in rows]

    def _time_to_pay(self) -> dict[str, Any]:
        took_ms = F.greatest(F.lit(0).cast("long"), elapsed_ms("created_at", "paid_at"))
        known = self.orders.where(F.col("created_at").isNotNull() & F.col("paid_at").isNotNull())
        took = known.select(F.lit("all").alias("which"), took_ms.alias("took_ms"))
        classes = took.groupBy(class_to_ms("took_ms").alias("to_ms")).agg(F.count("*").alias("count"))
        return _found(quantiles(took, ["which"], "took_ms").collect()) | {"curve": _curve(classes)}

    def _lateness(self, measure: str) -> dict[str, Any]:
        is_it = F.col("measure") == measure
        late = self.warehouse.read(self.spark, self.warehouse.gold("close_lateness"), CLOSE_LATENESS).where(is_it)
        rows = late.collect()
        return _found(rows) | {"curve": self._curve(is_it)}

    def _curve(self, is_it: Column) -> list[list[float]]:
        classes = self.warehouse.read(self.spark, self.warehouse.gold("lateness_classes"), LATENESS_CLASSES)
        return _curve(classes.where(is_it).groupBy("to_ms").agg(F.sum("count").alias("count")))

    def _stock(self) -> list[dict[str, Any]]:
        turnover = self.warehouse.read(self.spark, self.warehouse.gold("stock_turnover"), STOCK_TURNOVER)
        names = [name for name in STOCK_TURNOVER.names if name.startswith("units_")]
        summed = turnover.groupBy("product_id").agg(*(F.sum(name).alias(name) for name in names))
        rows = summed.orderBy(F.desc("units_reserved"), "product_id").limit(PRODUCTS_MAX).collect()
        return [row.asDict() for row in rows]


def findings_of(found: DataFrame) -> dict[str, Any]:
    """How many of which kind, and the first ones."""
    kinds = found.groupBy("kind").agg(F.count("*").alias("count")).orderBy(F.desc("count"), "kind").collect()
    first = found.orderBy("kind", "order_id", "payment_id", "found_in", "detail").limit(FINDINGS_MAX).collect()
    by_kind = {row["kind"]: row["count"] for row in kinds}
    return {"count": sum(by_kind.values()), "by_kind": by_kind, "first": [row.asDict() for row in first]}


def _found(rows: Sequence[Any]) -> dict[str, Any]:
    """The count and the percentiles of the one row that there is, if there is one."""
    if not rows:
        return {"count": 0}
    (row,) = rows
    return {name: value for name, value in row.asDict().items() if name == "count" or name.endswith("_ms")}


def _curve(classes: DataFrame) -> list[list[float]]:
    """[ms, share] of classes with columns to_ms and count: after `ms` at the latest, so large a share was done."""
    counts = [(row["to_ms"], row["count"]) for row in classes.orderBy("to_ms").collect()]
    total, seen, curve = sum(count for _, count in counts), 0, []
    for to_ms, count in counts:
        seen += count
        curve.append([to_ms, round(seen / total, 6)])
    return curve


def _iso(at: datetime) -> str:
    """Spark gives the time of this machine's zone, without a zone; the document says UTC."""
    return at.astimezone(UTC).isoformat(timespec="seconds")


def compare_books(totals: Sequence[Mapping[str, Any]], turnover: DataFrame, books: Books) -> list[dict[str, Any]]:
    """Each figure in the messages (gold order_totals by currency, and stock_turnover) and in the databases."""
    own = _sums(totals)
    told, stocked = _stock(turnover, books.products)
    booked = _payments(books.payments)
    only_told = {name for name, value in own.items() if value and name.startswith(("captured_minor", "refunded_minor"))}
    compared = {
        **{name: (own.get(name, 0), value) for name, value in _orders(books.orders).items()},
        **{name: (own.get(name, 0), booked.get(name, 0)) for name in sorted(booked.keys() | only_told)},
        "units kept by buyers": (told["kept"], stocked["kept"]),
        "units that wait for a payment": (told["waiting"], stocked["waiting"]),
        "products whose units differ": (0, stocked["differ"]),
    }
    return [
        {"figure": name.replace("_", " "), "messages": messages, "databases": databases, "equal": messages == databases}
        for name, (messages, databases) in compared.items()
    ]


def compare_lateness(
    timers: Sequence[Mapping[str, Any]], told: Mapping[str, Mapping[str, int]]
) -> list[dict[str, Any]]:
    """By delay level, in milliseconds: what the messages say, and what the broker counted.

    The broker answers a percentile with the end of its class, an eighth above it at most. It also counts from the time
    in whole milliseconds that have passed, while a record's store time is rounded up. `agrees`: both counted as many
    deliveries, and the broker's figures are those of the messages within this resolution.
    """
    found = []
    for own in timers:
        broker = told.get(str(own["level"]))
        if broker is None:
            continue
        names = ("p50", "p99", "max")
        agrees = own["count"] == broker["delivered"] and all(
            own[f"{name}_ms"] - ROUNDING_MS <= broker[name] <= own.get(f"{name}_to_ms", own["max_ms"]) for name in names
        )
        found.append(
            {"level": own["level"], "count": own["count"], "broker_count": broker["delivered"], "agrees": agrees}
            | {f"{name}_ms": own[f"{name}_ms"] for name in names}
            | {f"broker_{name}_ms": broker[name] for name in names}
        )
    return found


def _sums(totals: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Counts over all currencies; money by currency."""
    sums: dict[str, int] = {}
    for row in totals:
        for name, value in row.items():
            if name == "currency":
                continue
            key = f"{name} {row['currency']}" if name.endswith("_minor") else name
            sums[key] = sums.get(key, 0) + value
    return sums


def _orders(orders: DataFrame) -> dict[str, int]:
    paid = F.col("payment_id").isNotNull()
    counts = {"orders": F.count("*"), "paid": F.count_if(paid)}
    counts |= {name: F.count_if(F.col("status") == status) for name, status in STATUSES.items()}
    (row,) = orders.agg(*(count.alias(name) for name, count in counts.items())).collect()
    sums = orders.where(paid).groupBy("currency").agg(F.sum("total_minor").alias("sum")).orderBy("currency")
    return row.asDict() | {f"revenue_minor {one['currency']}": one["sum"] for one in sums.collect()}


def _payments(payments: DataFrame) -> dict[str, int]:
    taken = payments.where(F.col("captured_at_ms").isNotNull()).groupBy("currency")
    sums = taken.agg(F.sum("amount_minor").alias("captured"), F.sum("refunded_minor").alias("refunded"))
    found = {}
    for row in sums.orderBy("currency").collect():
        found[f"captured_minor {row['currency']}"] = row["captured"]
        found[f"refunded_minor {row['currency']}"] = row["refunded"]
    return found


def _stock(turnover: DataFrame, products: DataFrame) -> tuple[dict[str, int], dict[str, int]]:
    """Sums over all products, in messages and in the database, and how many products differ."""
    told = turnover.groupBy("product_id").agg(
        F.sum("units_kept").alias("kept"), F.sum("units_waiting").alias("waiting")
    )
    both = products.join(told, "product_id", "full_outer").fillna(0)
    differs = (F.col("kept") != F.col("sold")) | (F.col("waiting") != F.col("reserved"))
    sums = {name: F.coalesce(F.sum(name), F.lit(0)) for name in ("kept", "waiting", "sold", "reserved")}
    (row,) = both.agg(*(sum_.alias(name) for name, sum_ in sums.items()), F.count_if(differs).alias("differ")).collect()
    booked = {"kept": row["sold"], "waiting": row["reserved"], "differ": row["differ"]}
    return {"kept": row["kept"], "waiting": row["waiting"]}, booked

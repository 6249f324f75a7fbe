"""Two accounts of the same things, side by side: messages and databases, and lateness and the broker's own lateness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.adapters.books import Books
from analytics.jobs.silver import AWAITING_SHIPMENT, CLOSED_STATUS, COMPLETED_STATUS, PENDING_PAYMENT, SHIPPED_STATUS

ROUNDING_MS = 2  # rounded down, and a moment later up
STATUSES = {
    "pending_payment": PENDING_PAYMENT,
    "awaiting_shipment": AWAITING_SHIPMENT,
    "shipped": SHIPPED_STATUS,
    "completed": COMPLETED_STATUS,
    "closed": CLOSED_STATUS,
}


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

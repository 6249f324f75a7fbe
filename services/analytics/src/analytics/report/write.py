"""The report: what it compares, and the files that it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.adapters.books import Books
from analytics.adapters.hadoop_files import HadoopFiles
from analytics.jobs.gold import STOCK_TURNOVER
from analytics.jobs.silver import (
    AWAITING_SHIPMENT,
    CLOSED_STATUS,
    COMPLETED_STATUS,
    PENDING_PAYMENT,
    SHIPPED_STATUS,
)
from analytics.options import TablesOptions
from analytics.pipeline.run import Made
from analytics.report.figures import Tables, findings_of
from analytics.report.page import page_of
from analytics.report.pictures import draw
from analytics.warehouse import Warehouse

# ----------------------------------------------------------------------------------------------------------------------
# Two accounts of the same things, side by side: messages and databases, and lateness and the broker's own lateness.


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


# ----------------------------------------------------------------------------------------------------------------------
# The report of a warehouse: report.html, the pictures, and summary.json with every figure.


TITLE = "what the shop's messages tell"
PAGE, SUMMARY = "report.html", "summary.json"


@dataclass(frozen=True, slots=True)
class Report:
    """Where the page is, and what it says."""

    page: str
    document: Mapping[str, Any]


def write_report(
    warehouse: Warehouse,
    made: Made,
    options: TablesOptions,
    broker_lateness: Mapping[str, Mapping[str, int]],
    now: datetime,
) -> Report:
    """Make and write it. Raises what Spark and the file system raise."""
    spark = made.bronze.sparkSession
    document = document_of(warehouse, made, options, broker_lateness, now)
    pictures = draw(document)
    files, folder = HadoopFiles(spark), warehouse.report
    for name, data in pictures.items():
        files.write(f"{folder}/{name}", data)
    files.write(f"{folder}/{SUMMARY}", (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
    files.write(f"{folder}/{PAGE}", page_of(document, pictures).encode())
    return Report(f"{folder}/{PAGE}", document)


def document_of(
    warehouse: Warehouse,
    made: Made,
    options: TablesOptions,
    broker_lateness: Mapping[str, Mapping[str, int]],
    now: datetime,
) -> dict[str, Any]:
    """Every figure. Only `made_at`, and `as_of` unless it was given, differ when nothing new was read."""
    spark = made.bronze.sparkSession
    figures = Tables(spark, warehouse, made.silver_orders).figures()
    turnover = warehouse.read(spark, warehouse.gold("stock_turnover"), STOCK_TURNOVER)
    compares = made.books is not None and made.since is None
    (stored,) = made.bronze.agg(
        F.unix_millis(F.min("storeTimestamp")).alias("first"),
        F.unix_millis(F.max("storeTimestamp")).alias("last"),
        F.count("*").alias("rows"),
    ).collect()
    return {
        "title": TITLE,
        "made_at": _iso(now),
        "as_of": _iso(made.as_of),
        "since": None if made.since is None else _iso(made.since),
        "at_rest": options.at_rest,
        "spark": spark.version,
        "warehouse": warehouse.root,
        "first_stored_at": _iso_ms(stored["first"]),
        "last_stored_at": _iso_ms(stored["last"]),
        **figures,
        "findings": findings_of(made.findings),
        "books": compare_books(figures["totals"], turnover, made.books) if compares and made.books else [],
        "lateness": compare_lateness(figures["timers"], broker_lateness),
        "tables": {"bronze": stored["rows"], **made.rows},
    }


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")


def _iso_ms(at_ms: int | None) -> str | None:
    return None if at_ms is None else _iso(datetime.fromtimestamp(at_ms / 1000, UTC))

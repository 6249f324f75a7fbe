"""The report of a warehouse: report.html, the pictures, and summary.json with every figure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import functions as F

from analytics.adapters.hadoop_files import HadoopFiles
from analytics.jobs.gold import STOCK_TURNOVER
from analytics.options import TablesOptions
from analytics.pipeline.tables import Made
from analytics.report.compare import compare_books, compare_lateness
from analytics.report.figures import Tables, findings_of
from analytics.report.page import page_of
from analytics.report.pictures import draw
from analytics.warehouse import Warehouse

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

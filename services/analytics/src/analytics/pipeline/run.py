"""`run`, `backfill` and `report`: read, make every table, reconcile, and report."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from analytics.adapters.broker_lateness import read_broker_lateness
from analytics.jobs.bronze import bronze
from analytics.options import TablesOptions
from analytics.pipeline.stream import follow, start_bronze
from analytics.pipeline.tables import Progress, make_tables
from analytics.queue_choice import Queue
from analytics.report.write import Report, write_report
from analytics.warehouse import Warehouse
from osenv import RealClock


def run_stream(warehouse: Warehouse, queue: Queue, spark: SparkSession, progress: Progress) -> int:
    """Read what is in the queue now and was not read before; how many messages that was.

    Raises StreamingQueryException when the query fails.
    """
    rows, batches = 0, 0
    query = start_bronze(spark, warehouse, queue)
    try:
        for batch in follow(query):
            rows, batches = rows + batch.rows, batches + bool(batch.rows)
            progress.show(f"bronze: {batches} batches, {rows:,} messages")
    finally:
        query.stop()
    progress.say(f"bronze: {rows:,} new messages in {batches} batches")
    return rows


def run_backfill(
    warehouse: Warehouse,
    queue: Queue,
    spark: SparkSession,
    progress: Progress,
    *,
    begin: datetime,
    end: datetime | None,
) -> None:
    """Read a time again, and add what bronze does not have yet. Nothing is removed from bronze.

    Raises what Spark raises, and OSError.
    """
    name = f"{_stamp(begin)}-{'now' if end is None else _stamp(end)}"
    with progress.step(f"bronze/backfill: from {begin.isoformat()}{'' if end is None else f' to {end.isoformat()}'}"):
        added = warehouse.add_backfill(name, bronze(queue.between(spark, begin, end)))
    progress.say(f"bronze/backfill: {added:,} messages that were not in bronze")


def run_tables(spark: SparkSession, warehouse: Warehouse, options: TablesOptions, progress: Progress) -> Report:
    """Make everything that is made from bronze, and the report.

    Raises WarehouseError without messages, BooksError, LatenessFileError, and what Spark raises.
    """
    now = datetime.fromtimestamp(RealClock().wall_ms() / 1000, UTC)
    lateness = {} if options.lateness_file is None else read_broker_lateness(options.lateness_file)
    made = make_tables(spark, warehouse, options, progress, now)
    with progress.step("report"):
        return write_report(warehouse, made, options, lateness, now)


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")

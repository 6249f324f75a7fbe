"""`run`, `live`, `backfill` and `report`: read, make every table, reconcile, and report.

`live` reads until it is asked to stop; its progress is shown as OpenTelemetry metrics, on a page for Prometheus or over
OTLP, as telemetry's variables ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from pyspark.sql import SparkSession

import telemetry
from analytics.adapters import read_broker_lateness, stop_asked
from analytics.jobs.bronze import bronze
from analytics.report.write import Report, write_report
from analytics.stream import Batch, Queue, follow, start_bronze
from analytics.tables import Progress, TablesOptions, make_tables
from analytics.warehouse import Warehouse
from osenv import RealClock
from telemetry import names

SERVICE_NAME = "analytics"

Points = Callable[[Batch], Iterable[tuple[float, dict[str, str]]]]


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


def run_live(warehouse: Warehouse, queue: Queue, spark: SparkSession, progress: Progress, *, trigger_s: float) -> None:
    """Return when SIGTERM or SIGINT came; the batch that was under way is run again at the next start.

    Raises StreamingQueryException when the query fails, and TelemetryConfigError.
    """
    telemetry.observe(SERVICE_NAME)
    metrics = PipelineMetrics()
    rows = 0
    with stop_asked() as asked:
        query = start_bronze(spark, warehouse, queue, trigger_s=trigger_s)
        try:
            for batch in follow(query, until=asked.is_set):
                metrics.tell(batch)
                rows += batch.rows
                progress.show(f"bronze: batch {batch.number}, {rows:,} messages; {sum(batch.lag.values()):,} wait")
        finally:
            query.stop()
            telemetry.shutdown()
    progress.say(f"Stopped; {rows:,} messages were written to {warehouse.events}.")


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


def _single(read: Callable[[Batch], float]) -> Points:
    return lambda batch: [(read(batch), {})]


def _by_topic(read: Callable[[Batch], Iterable[tuple[str, int]]]) -> Points:
    return lambda batch: [(value, {names.DESTINATION_NAME: topic}) for topic, value in read(batch)]


# Name, unit, description, reading. Prometheus and a collector have to give the same names, so rates have no unit.
GAUGES: tuple[tuple[str, str, str, Points], ...] = (
    (
        "hourglass.pipeline.input.rate",
        "",
        "Messages a second that have come to the queue since the batch before",
        _single(lambda batch: batch.input_rows_per_s),
    ),
    (
        "hourglass.pipeline.processed.rate",
        "",
        "Messages a second of the last batch while it was worked on",
        _single(lambda batch: batch.processed_rows_per_s),
    ),
    (
        "hourglass.pipeline.batch.duration",
        "s",
        "How long the last batch took",
        _single(lambda batch: batch.duration_ms / 1000),
    ),
    ("hourglass.pipeline.batch.number", "", "The last batch", _single(lambda batch: batch.number)),
    (
        "hourglass.pipeline.lag",
        "{message}",
        "Messages of the topic that have not been read",
        _by_topic(lambda batch: batch.lag.items()),
    ),
    (
        "hourglass.pipeline.offset",
        "{message}",
        "Offset up to which the topic has been read, summed over its queues",
        _by_topic(lambda batch: batch.read_until.items()),
    ),
)


class PipelineMetrics:
    """The instruments, under `meter` or the process's own. They tell of the last batch of `tell`, before it of none."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or metrics.get_meter(SERVICE_NAME)
        self._last: Batch | None = None
        for name, unit, description, read in GAUGES:
            meter.create_observable_gauge(name, [self._observing(read)], unit, description)
        self._rows = meter.create_counter("hourglass.pipeline.messages", "{message}", "Messages written to bronze")
        self._batches = meter.create_counter("hourglass.pipeline.batches", "{batch}", "Batches with messages")

    def tell(self, batch: Batch) -> None:
        """The last batch is this one; one without rows tells of rates and lag only."""
        self._last = batch
        if batch.rows:
            self._rows.add(batch.rows)
            self._batches.add(1)

    def _observing(self, read: Points) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            last = self._last
            return [] if last is None else [Observation(value, attributes) for value, attributes in read(last)]

        return observe

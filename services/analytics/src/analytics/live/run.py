"""`python -m analytics live`: the streaming job until somebody asks it to stop."""

from __future__ import annotations

from pyspark.sql import SparkSession

import telemetry
from analytics.adapters.stopping import stop_asked
from analytics.live.metrics import PipelineMetrics
from analytics.pipeline.progress import Progress
from analytics.pipeline.stream import follow, start_bronze
from analytics.queue_choice import Queue
from analytics.warehouse import Warehouse

SERVICE_NAME = "analytics"


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

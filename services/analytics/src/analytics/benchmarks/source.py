"""How fast a topic is read: rows a second into nothing, and how much of the tasks' time is not the reader's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from analytics.benchmarks.adapters import event_log, reader_log
from analytics.benchmarks.adapters.scratch import scratch_folder
from analytics.benchmarks.metered_source import LOG_OPTION, MeteredSource
from analytics.session import SessionOptions, open_session
from osenv import RealClock

WARM_UP = "warm-up"  # a first read, while Java compiles and Python's workers start; not counted


def measure_source(options: SessionOptions, read_options: dict[str, str], runs: int) -> dict[str, Any]:
    """For JSON: `runs`, each a read of everything that `read_options` names. Raises what Spark raises."""
    with scratch_folder() as folder:
        events = folder / "events"
        events.mkdir()
        settings = {**options.settings, **event_log.settings(events)}
        spark = open_session("source benchmark", replace(options, settings=settings))
        try:
            spark.dataSource.register(MeteredSource)
            groups = [WARM_UP, *(f"run-{number}" for number in range(runs))]
            walls_s = {group: _read(spark, read_options, group, folder) for group in groups}
        finally:
            spark.stop()
        tasks = event_log.read_tasks(events)
        return {"runs": [_run(walls_s[group], tasks[group], folder / group) for group in groups[1:]]}


def _read(spark: SparkSession, read_options: dict[str, str], group: str, folder: Path) -> float:
    """Seconds."""
    clock = RealClock()
    spark.sparkContext.setJobGroup(group, group)
    reader = spark.read.format(MeteredSource.name()).options(**read_options, **{LOG_OPTION: str(folder / group)})
    begin = clock.monotonic()
    reader.load().write.format("noop").mode("overwrite").save()
    return clock.monotonic() - begin


def _run(wall_s: float, tasks: event_log.Tasks, log: Path) -> dict[str, float]:
    times = reader_log.read(str(log))
    rows, inside_s = sum(time.rows for time in times), sum(time.inside_s for time in times)
    return {
        "rows": rows,
        "wall_s": wall_s,
        "rows_per_s": rows / wall_s,
        "partitions": len(times),
        "batches": sum(time.batches for time in times),
        "tasks_run_s": tasks.run_s,
        "reader_s": inside_s,
        "outside_reader_share": 1 - inside_s / tasks.run_s,
    }

"""The measurements of the data source and the silver job, from inside Spark: one line of JSON each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from analytics.benchmarks.adapters import event_log, reader_log
from analytics.benchmarks.adapters.reader_log import ReaderTime
from analytics.events import events, read_bodies
from analytics.jobs.silver import orders
from analytics.session import SessionOptions, open_session
from analytics.warehouse import DAY, Warehouse
from osenv import RealClock
from pyspark_mq import DefaultSource

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]


# ----------------------------------------------------------------------------------------------------------------------
# A folder for the time of a measurement.


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Gone afterwards, with everything in it. Raises OSError."""
    with TemporaryDirectory(prefix="hourglass-bench-") as name:
        yield Path(name)


# ----------------------------------------------------------------------------------------------------------------------
# The data source `mq`, with a clock around its reader: `format("mq-metered")`.
#
# Invariant: the reader's time is what passes between a request for its next batch and the batch; what Spark does with
# the batch is outside of it.


LOG_OPTION = "meterLog"


class MeteredSource(DataSource):
    """Takes the options of `mq`, and `meterLog`: the file to which each partition adds its line."""

    @classmethod
    def name(cls) -> str:
        return "mq-metered"

    def schema(self) -> StructType:
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises OptionError."""
        return MeteredReader(self._source().reader(schema), self.options[LOG_OPTION])

    def _source(self) -> DefaultSource:
        own = LOG_OPTION.lower()
        return DefaultSource(CaseInsensitiveDict({key: value for key, value in self.options.items() if key != own}))


class MeteredReader(DataSourceReader):
    """The reader within, metered."""

    def __init__(self, within: DataSourceReader, log_path: str) -> None:
        self._within = within
        self._log_path = log_path

    def partitions(self) -> list[InputPartition]:
        return list(self._within.partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        time = ReaderTime()
        batches = iter(self._within.read(partition))
        while True:
            with time.inside():
                batch = next(batches, None)
            if batch is None:
                break
            time.batches += 1
            time.rows += batch.num_rows
            yield batch
        reader_log.append(self._log_path, time)


# ----------------------------------------------------------------------------------------------------------------------
# What the silver job costs: bronze of a warehouse -> one row per order, as Parquet.


GROUP = "silver"


def measure_silver(options: SessionOptions, warehouse: Warehouse) -> dict[str, Any]:
    """For JSON. Raises WarehouseError without bronze, and what Spark raises."""
    with scratch_folder() as log:
        settings = {**options.settings, **event_log.settings(log)}
        spark = open_session("silver benchmark", replace(options, settings=settings))
        try:
            clock = RealClock()
            rows = warehouse.bronze(spark)
            spark.sparkContext.setJobGroup(GROUP, GROUP)
            begin = clock.monotonic()
            warehouse.replace(warehouse.silver("orders"), orders(events(read_bodies(rows))), [DAY])
            wall_s = clock.monotonic() - begin
            spark.sparkContext.setJobGroup("count", "count")
            counts = {"events": rows.count(), "orders": spark.read.parquet(warehouse.silver("orders")).count()}
        finally:
            spark.stop()
        tasks = event_log.read_tasks(log)[GROUP]
    return {**counts, "wall_s": wall_s, "memory": options.memory, "tasks": asdict(tasks)}


# ----------------------------------------------------------------------------------------------------------------------
# How fast a topic is read: rows a second into nothing, and how much of the tasks' time is not the reader's.


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


# ----------------------------------------------------------------------------------------------------------------------
# `python -m analytics bench source` and `bench silver`: one measurement, and one line of JSON on standard output.


NAME = "bench"
SOURCE, SILVER = "source", "silver"
RUNS = 3


def add_bench_parser(commands: Parsers, add_session: Callable[[argparse.ArgumentParser], None]) -> None:
    """The command and its measurements; `add_session` adds the options of the session and the warehouse."""
    bench = commands.add_parser(NAME, help="one measurement, as a line of JSON (started by the load tests)")
    measurements = bench.add_subparsers(dest="measurement", required=True)
    source = measurements.add_parser(SOURCE, help="read a topic into nothing")
    add_session(source)
    source.add_argument("--namesrv-addr", required=True, metavar="HOST:PORT", help="name servers, separated by ;")
    source.add_argument("--topic", required=True)
    source.add_argument("--runs", type=int, default=RUNS, metavar="N", help="after one that warms up; %(default)s")
    source.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the data source; repeatable"
    )
    add_session(measurements.add_parser(SILVER, help="make silver orders of what a warehouse has in bronze"))


def run_bench(options: argparse.Namespace, session: SessionOptions, warehouse: Warehouse) -> int:
    """Measure and print. Raises WarehouseError, and what Spark raises."""
    if options.measurement == SOURCE:
        own = dict(text.partition("=")[::2] for text in options.option)
        found = measure_source(
            session, {"namesrvAddr": options.namesrv_addr, "subscribe": options.topic} | own, options.runs
        )
    else:
        found = measure_silver(session, warehouse)
    print(json.dumps(found), flush=True)
    return 0

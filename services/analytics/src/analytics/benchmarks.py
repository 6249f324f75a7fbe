"""What the data source and the jobs cost, measured from inside Spark: `python -m analytics bench source` and `silver`.

Each measurement is a process of its own and says what it found as one line of JSON. The load tests start them, watch
their memory and processor time from outside, and write what they found as a file. `format("mq-metered")` is the
data source `mq` with a clock around its reader. Invariant: the reader's time is what passes between a request
for its next batch and the batch; what Spark does with the batch is outside of it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from analytics.events import events, read_bodies
from analytics.jobs.silver import orders
from analytics.session import SessionOptions, open_session
from analytics.warehouse import DAY, Warehouse
from osenv import RealClock
from pyspark_mq import DefaultSource

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]


NAME = "bench"
SOURCE, SILVER = "source", "silver"
RUNS = 3
GROUP = "silver"
WARM_UP = "warm-up"  # a first read, while Java compiles and Python's workers start; not counted
LOG_OPTION = "meterLog"
_GROUP = "spark.jobGroup.id"


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


def measure_source(options: SessionOptions, read_options: dict[str, str], runs: int) -> dict[str, Any]:
    """For JSON: `runs`, each a read of everything that `read_options` names. Raises what Spark raises."""
    with scratch_folder() as folder:
        events = folder / "events"
        events.mkdir()
        settings = {**options.settings, **event_log_settings(events)}
        spark = open_session("source benchmark", replace(options, settings=settings))
        try:
            spark.dataSource.register(MeteredSource)
            groups = [WARM_UP, *(f"run-{number}" for number in range(runs))]
            walls_s = {group: _read(spark, read_options, group, folder) for group in groups}
        finally:
            spark.stop()
        tasks = read_tasks(events)
        return {"runs": [_run_of(walls_s[group], tasks[group], folder / group) for group in groups[1:]]}


def _read(spark: SparkSession, read_options: dict[str, str], group: str, folder: Path) -> float:
    """Seconds."""
    clock = RealClock()
    spark.sparkContext.setJobGroup(group, group)
    reader = spark.read.format(MeteredSource.name()).options(**read_options, **{LOG_OPTION: str(folder / group)})
    begin = clock.monotonic()
    reader.load().write.format("noop").mode("overwrite").save()
    return clock.monotonic() - begin


def _run_of(wall_s: float, tasks: Tasks, log: Path) -> dict[str, float]:
    times = read_times(str(log))
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


def measure_silver(options: SessionOptions, warehouse: Warehouse) -> dict[str, Any]:
    """For JSON. Raises WarehouseError without bronze, and what Spark raises."""
    with scratch_folder() as log:
        settings = {**options.settings, **event_log_settings(log)}
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
        tasks = read_tasks(log)[GROUP]
    return {**counts, "wall_s": wall_s, "memory": options.memory, "tasks": asdict(tasks)}


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Gone afterwards, with everything in it. Raises OSError."""
    with TemporaryDirectory(prefix="hourglass-bench-") as name:
        yield Path(name)


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
        append_time(self._log_path, time)


@dataclass(slots=True)
class ReaderTime:
    """How long one partition was inside the reader, and what it gave."""

    rows: int = 0
    batches: int = 0
    inside_s: float = 0.0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Count the time within."""
        begin = perf_counter()
        try:
            yield
        finally:
            self.inside_s += perf_counter() - begin


def append_time(path: str, time: ReaderTime) -> None:
    """Add a line. One write of a short line is not mixed with another's."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(time)) + "\n")


def read_times(path: str) -> list[ReaderTime]:
    """All of them; none when nothing was read."""
    file = Path(path)
    if not file.exists():
        return []
    return [ReaderTime(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def event_log_settings(folder: Path) -> dict[str, str]:
    """What makes Spark write one plain file into the folder."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.absolute().as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


@dataclass(slots=True)
class Tasks:
    """All tasks of a job group together; the peak is of one task."""

    count: int = 0
    run_s: float = 0.0
    cpu_s: float = 0.0
    gc_s: float = 0.0
    peak_execution_mib: float = 0.0
    spilled_mib: float = 0.0
    shuffled_mib: float = 0.0

    def add(self, metrics: dict[str, Any]) -> None:
        """A task that has ended."""
        self.count += 1
        self.run_s += metrics["Executor Run Time"] / 1000
        self.cpu_s += metrics["Executor CPU Time"] / 1e9
        self.gc_s += metrics["JVM GC Time"] / 1000
        self.peak_execution_mib = max(self.peak_execution_mib, metrics["Peak Execution Memory"] / 2**20)
        self.spilled_mib += metrics["Disk Bytes Spilled"] / 2**20
        self.shuffled_mib += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"] / 2**20


def read_tasks(folder: Path) -> dict[str, Tasks]:
    """By job group; those of no group under "". The session has to be stopped. Raises OSError, ValueError."""
    (file,) = folder.iterdir()
    with file.open(encoding="utf-8") as lines:
        return tasks_of(json.loads(line) for line in lines)


def tasks_of(events: Iterable[dict[str, Any]]) -> dict[str, Tasks]:
    """By job group, of the events of one application. A stage belongs to the group that has asked for it first."""
    groups: dict[int, str] = {}
    found: dict[str, Tasks] = {}
    for event in events:
        match event["Event"]:
            case "SparkListenerJobStart":
                for stage_id in event["Stage IDs"]:
                    groups.setdefault(stage_id, event["Properties"].get(_GROUP, ""))
            case "SparkListenerTaskEnd" if "Task Metrics" in event:  # a task that was lost has none
                group = groups.get(event["Stage ID"], "")
                found.setdefault(group, Tasks()).add(event["Task Metrics"])
    return found

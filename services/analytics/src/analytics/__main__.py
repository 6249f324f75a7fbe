"""The command line: `python -m analytics run`, `live`, `backfill`, `report`, `generate` and `bench`.

Exit codes: 0 all well, 1 reconciliation found something or the program failed, 2 bad options, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from analytics import options as wanted
from analytics.adapters import BooksError, LatenessFileError, StoppedError, stopped_by_signals
from analytics.benchmarks import NAME as BENCH
from analytics.benchmarks import run_bench
from analytics.generator.generate import NAME as GENERATE
from analytics.generator.generate import run_generate, truth_path
from analytics.generator.generation import Generation
from analytics.options import PROGRAM, OptionsError
from analytics.pipeline import run_backfill, run_live, run_stream, run_tables
from analytics.report.write import EXIT_GOOD, Report, say_verdict
from analytics.session import SessionOptions, open_session
from analytics.tables import Progress, TablesOptions
from analytics.warehouse import Warehouse, WarehouseError, claim
from telemetry import TelemetryConfigError

Step = Callable[[SparkSession, Progress], object]
Work = Callable[[SparkSession, Progress], Report | None]

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
# Of what Java says, the first lines: the rest is where it happened inside Spark.
ERROR_LINES_MAX = 12


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    options = wanted.parse(arguments)
    try:
        with stopped_by_signals():
            return _with_session(options)
    except StoppedError:
        print(f"{PROGRAM}: interrupted; what was being written is left out", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (OptionsError, LatenessFileError, TelemetryConfigError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except (WarehouseError, BooksError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except (PySparkException, Py4JError) as error:
        lines = str(error).strip().splitlines()
        print(f"{PROGRAM}: {type(error).__name__}: " + "\n".join(lines[:ERROR_LINES_MAX]), file=sys.stderr)
        return EXIT_FAILED


def _with_session(options: argparse.Namespace) -> int:
    session_options = wanted.session_options(options)
    if options.command == BENCH:
        return run_bench(options, session_options, wanted.warehouse_of(options))
    work = _work(options)
    console = Console()
    with Progress(console) as progress:
        progress.show("starting Spark")
        with _session(f"{PROGRAM} {options.command}", session_options) as spark:
            report = work(spark, progress)
    return EXIT_GOOD if report is None else say_verdict(report.document, report.page, console)


@contextmanager
def _session(name: str, options: SessionOptions) -> Iterator[SparkSession]:
    spark = open_session(name, options)
    try:
        yield spark
    except StoppedError:
        # Java may have had the same signal, and be gone: an error while ending it is no news then.
        with suppress(PySparkException, Py4JError, OSError):
            spark.stop()
        raise
    except BaseException:
        spark.stop()
        raise
    spark.stop()


def _work(options: argparse.Namespace) -> Work:
    """What is to be done, with every option checked. Raises OptionsError."""
    warehouse = wanted.warehouse_of(options)
    if options.command == GENERATE:
        return partial(_generate, warehouse, wanted.generation(options))
    if options.command == wanted.REPORT:
        return partial(_report, [], warehouse, wanted.tables_options(options))
    queue = wanted.queue_of(options)
    if options.command == wanted.BACKFILL:
        backfill: Step = partial(run_backfill, warehouse, queue, begin=options.begin, end=options.end)
        return partial(_report, [backfill], warehouse, wanted.tables_options(options))
    own: Step = partial(_claim, warehouse, options.source)
    if options.command == wanted.LIVE:
        return partial(_live, own, partial(run_live, warehouse, queue, trigger_s=options.trigger))
    return partial(_report, [own, partial(run_stream, warehouse, queue)], warehouse, wanted.tables_options(options))


def _report(
    steps: Sequence[Step], warehouse: Warehouse, tables: TablesOptions, spark: SparkSession, progress: Progress
) -> Report:
    for step in steps:
        step(spark, progress)
    return run_tables(spark, warehouse, tables, progress)


def _live(own: Step, live: Step, spark: SparkSession, progress: Progress) -> None:
    own(spark, progress)
    live(spark, progress)


def _generate(warehouse: Warehouse, wanted_: Generation, spark: SparkSession, progress: Progress) -> None:
    with progress.step(f"bronze/events: {wanted_.orders:,} orders"):
        truth = run_generate(spark, wanted_, warehouse)
    progress.say(f"{truth.count():,} planted faults, in {truth_path(warehouse)}")


def _claim(warehouse: Warehouse, source: str, spark: SparkSession, progress: Progress) -> None:
    if claim(spark, warehouse, source):
        progress.say(f"{warehouse.root} was made from another queue: its tables were removed")


if __name__ == "__main__":
    sys.exit(main())

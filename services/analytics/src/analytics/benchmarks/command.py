"""`python -m analytics bench source` and `bench silver`: one measurement, and one line of JSON on standard output."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from analytics.benchmarks.silver import measure_silver
from analytics.benchmarks.source import measure_source
from analytics.session import SessionOptions
from analytics.warehouse import Warehouse

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

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

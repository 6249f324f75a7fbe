"""`python -m analytics generate`: order histories of any size as the bronze table of a warehouse.

Beside bronze lies the table `bronze/truth`: which order has which planted fault.
"""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from analytics.adapters.hadoop_files import HadoopFiles
from analytics.generator.generate import TRUTH, generate
from analytics.generator.generation import FIRST_DAY, Generation
from analytics.generator.stories import FAULTS
from analytics.jobs.reconciliation_kinds import Kind
from analytics.warehouse import Warehouse, WarehouseError

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

NAME = "generate"
ORDERS = 10_000


def add_generate_parser(commands: Parsers) -> argparse.ArgumentParser:
    """The command and its own options; the caller adds those of the session and the warehouse."""
    command = commands.add_parser(NAME, help="make order histories with planted faults, as bronze: for scale tests")
    command.add_argument("--orders", type=int, default=ORDERS, metavar="N", help="default: %(default)s")
    command.add_argument("--days", type=int, default=7, metavar="N", help="over which they come; default: %(default)s")
    command.add_argument(
        "--start", type=_day, default=FIRST_DAY, metavar="DAY", help=f"the first of them; {FIRST_DAY:%Y-%m-%d}"
    )
    command.add_argument("--seed", type=int, default=1, metavar="N", help="the same makes the same; %(default)s")
    command.add_argument("--brokers", type=int, default=1, metavar="N", help="default: %(default)s")
    command.add_argument("--queues", type=int, default=4, metavar="N", help="of each topic; default: %(default)s")
    command.add_argument(
        "--fault",
        type=_fault,
        action="append",
        default=[],
        metavar="KIND=N",
        help=f"so many orders with it; may be repeated; KIND is all, or one of {', '.join(FAULTS)}",
    )
    return command


def generation_of(options: argparse.Namespace) -> Generation:
    """Raises ValueError for what does not go together."""
    faults: dict[Kind, int] = {}
    for kinds, count in options.fault:
        faults |= dict.fromkeys(kinds, count)
    return Generation(
        orders=options.orders,
        seed=options.seed,
        start=options.start,
        days=options.days,
        faults=faults,
        brokers=options.brokers,
        queues=options.queues,
        read_twice_share=0.0,  # the table that the streaming job writes has each message once
    )


def run_generate(spark: SparkSession, wanted: Generation, warehouse: Warehouse) -> DataFrame:
    """Write bronze and the truth in place of what was generated before; returns the truth as it was written.

    Raises WarehouseError for a warehouse that has read a queue: made-up messages do not belong among real ones.
    """
    if HadoopFiles(spark).exists(warehouse.bronze_checkpoint):
        raise WarehouseError(f"{warehouse.root} holds messages of a queue; name another folder for generated ones")
    made = generate(spark, wanted)
    warehouse.replace(warehouse.events, made.bronze, ("day",))
    warehouse.replace(truth_path(warehouse), made.truth)
    return warehouse.read(spark, truth_path(warehouse), TRUTH)


def truth_path(warehouse: Warehouse) -> str:
    """Where the truth lies."""
    return f"{warehouse.root}/bronze/truth"


def _day(text: str) -> datetime:
    try:
        return datetime.combine(date.fromisoformat(text), time(tzinfo=UTC))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day such as 2026-11-02") from None


def _fault(text: str) -> tuple[tuple[Kind, ...], int]:
    kind, _, count = text.partition("=")
    if kind not in {"all", *FAULTS} or not (count.isascii() and count.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no fault such as {FAULTS[0]}=7; allowed is all=7 too")
    return (FAULTS if kind == "all" else (Kind(kind),)), int(count)

"""The command line of the programs, checked before Spark is started."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from analytics.adapters import BooksUrls
from analytics.benchmarks import add_bench_parser
from analytics.generator.generate import add_generate_parser, generation_of
from analytics.generator.generation import Generation
from analytics.session import DEFAULT_MEMORY, SessionOptions
from analytics.stream import OFFSETS_PER_BATCH, Queue
from analytics.tables import TablesOptions
from analytics.warehouse import Warehouse, WarehouseError

PROGRAM = "analytics"
DEFAULT_WAREHOUSE = ".pipeline"
TRIGGER_S = 5.0
RUN, LIVE, BACKFILL, REPORT = "run", "live", "backfill", "report"


class OptionsError(ValueError):
    """An option that cannot be used; the message names it and says what is allowed."""


def parser() -> argparse.ArgumentParser:
    """Of all programs."""
    top = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description="The shop's events as tables and a report.")
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser(RUN, help="read what is in the queue now, make every table, reconcile, and report")
    _add_session(run)
    _add_queue(run)
    _add_tables(run)
    run.add_argument("--source", default="", metavar="NAME", help="of this queue: tables of another one are removed")
    live = commands.add_parser(LIVE, help="read what comes, until SIGTERM or Ctrl-C; progress as metrics (OTEL_*)")
    _add_session(live)
    _add_queue(live)
    live.add_argument("--trigger", type=_positive, default=TRIGGER_S, metavar="S", help="a batch each; %(default)g")
    live.add_argument("--source", default="", metavar="NAME", help="as of run")
    backfill = commands.add_parser(BACKFILL, help="read a time again by a batch, and make the other tables again")
    _add_session(backfill)
    _add_queue(backfill)
    _add_tables(backfill)
    backfill.add_argument(
        "--from", dest="begin", type=_time, required=True, metavar="TIME", help="such as 2026-11-01T00:00Z"
    )
    backfill.add_argument("--to", dest="end", type=_time, metavar="TIME", help="what was stored before it; until now")
    report = commands.add_parser(REPORT, help="make silver, gold and the report again from what has been read")
    _add_session(report)
    _add_tables(report)
    _add_session(add_generate_parser(commands))
    add_bench_parser(commands, _add_session)
    return top


def session_options(options: argparse.Namespace) -> SessionOptions:
    """Raises OptionsError."""
    settings = dict(_setting(text) for text in options.conf)
    return SessionOptions(master=options.master, memory=options.memory, ui=options.ui, settings=settings)


def warehouse_of(options: argparse.Namespace) -> Warehouse:
    """Raises OptionsError."""
    try:
        return Warehouse(_root(options.warehouse))
    except WarehouseError as error:
        raise OptionsError(str(error)) from error


def generation(options: argparse.Namespace) -> Generation:
    """Raises OptionsError."""
    try:
        return generation_of(options)
    except ValueError as error:
        raise OptionsError(str(error)) from error


def queue_of(options: argparse.Namespace) -> Queue:
    """Raises OptionsError."""
    if not options.namesrv_addr.strip():
        raise OptionsError("--namesrv-addr is empty; allowed is host:port, several separated by ;")
    return Queue(
        namesrv_addr=options.namesrv_addr,
        group=options.group,
        from_slave=options.from_slave,
        offsets_per_batch=options.offsets_per_batch,
    )


def tables_options(options: argparse.Namespace) -> TablesOptions:
    """Raises OptionsError."""
    if bool(options.orders) != bool(options.payments):
        raise OptionsError("--orders and --payments are given together: money is in one database, goods in the other")
    file = Path(options.broker_lateness) if options.broker_lateness else None
    return TablesOptions(
        at_rest=options.at_rest,
        as_of=options.as_of,
        books=BooksUrls(options.orders, options.payments) if options.orders else None,
        lateness_file=file,
    )


def _add_session(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--warehouse", default=DEFAULT_WAREHOUSE, metavar="FOLDER", help="or a URI that Spark knows; %(default)s"
    )
    command.add_argument("--master", help="of Spark; what spark-submit says, or else local[*]")
    command.add_argument("--memory", default=DEFAULT_MEMORY, help="of the driver; %(default)s")
    command.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark; repeatable"
    )
    command.add_argument("--ui", action="store_true", help="with Spark's own page")


def _add_queue(command: argparse.ArgumentParser) -> None:
    command.add_argument("--namesrv-addr", required=True, metavar="HOST:PORT", help="name servers, separated by ;")
    command.add_argument("--group", default="", help="consumer group that shows how far this has read; none")
    command.add_argument("--from-slave", action="store_true", help="read from replicas where there are any")
    command.add_argument(
        "--offsets-per-batch", type=_count, default=OFFSETS_PER_BATCH, metavar="N", help="at most; %(default)s"
    )


def _add_tables(command: argparse.ArgumentParser) -> None:
    command.add_argument("--orders", default="", metavar="URL", help="database of orders, to compare with")
    command.add_argument("--payments", default="", metavar="URL", help="database of payments, to compare with")
    command.add_argument(
        "--broker-lateness", default="", metavar="FILE", help="JSON with what brokers say of their delay levels"
    )
    command.add_argument("--at-rest", action="store_true", help="the shop has stopped: nothing is under way any more")
    command.add_argument("--as-of", type=_time, metavar="TIME", help="reconcile as of then; now")


def _root(text: str) -> str:
    return text if ":" in text else str(Path(text).absolute())


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise OptionsError(f"--conf {text!r}: allowed is KEY=VALUE")
    return key, value


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2026-11-01T00:00Z") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Ends the process with code 2 for what argparse rejects."""
    return parser().parse_args(arguments)

"""`python -m hourglass_loadtest pipeline`: what is measured, and where it goes."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hourglass_loadtest.machine import describe_run
from hourglass_loadtest.pipeline.benches import METRICS, measure_silver, measure_source
from hourglass_loadtest.run import DIGITS

FILE_NAME = "pipeline-benchmarks.json"
MASTER, MEMORY = "local[2]", "2g"
MESSAGES, SIZES, RUNS = 2_000_000, (1_000_000, 2_000_000, 5_000_000, 10_000_000), 3
QUICK_PART = 50  # of all sizes
SOURCE, SILVER = "source", "silver"


def add_pipeline_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], evidence: Path) -> None:
    """The command and its options."""
    command = commands.add_parser("pipeline", help="what the pipeline on Spark costs: the source, and the silver job")
    command.add_argument("--only", choices=(SOURCE, SILVER), help="one of the two")
    command.add_argument("--messages", type=int, default=MESSAGES, metavar="N", help="in the topic; %(default)s")
    command.add_argument(
        "--events", type=int, action="append", metavar="N", help=f"for silver; may be repeated; {SIZES}"
    )
    command.add_argument("--runs", type=int, default=RUNS, metavar="N", help="of each measurement; %(default)s")
    command.add_argument("--master", default=MASTER, help="of Spark; %(default)s")
    command.add_argument("--memory", default=MEMORY, help="of Spark's driver; %(default)s")
    command.add_argument("--quick", action="store_true", help=f"a {QUICK_PART}th of all sizes, one run")
    command.add_argument(
        "--out", type=Path, metavar="FILE", help=f"for the results; without it, only whole ones: {evidence}/{FILE_NAME}"
    )
    command.set_defaults(evidence=evidence)


async def run_pipeline(options: argparse.Namespace, console: Console) -> None:
    """Measure, print, write. Raises RunError, ProcessError, OSError."""
    part = QUICK_PART if options.quick else 1
    runs = 1 if options.quick else options.runs
    sizes = [events // part for events in options.events or SIZES]
    session = ["--master", options.master, "--memory", options.memory]
    document = describe_run()
    document["machine"] |= {"pyspark": version("pyspark"), "pyarrow": version("pyarrow"), "java": _java()}
    document |= {"master": options.master, "driver_memory": options.memory}
    with TemporaryDirectory(prefix="hourglass-pipeline-") as name:
        folder = Path(name)
        if options.only != SILVER:
            with console.status("the source", refresh_per_second=1):
                document[SOURCE] = await measure_source(folder, options.messages // part, runs, session)
        if options.only != SOURCE:
            document[SILVER] = await measure_silver(folder, sizes, runs, session, console)
    _print(console, document)
    whole = not options.quick and options.only is None
    out = options.out or (options.evidence / FILE_NAME if whole else None)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(_short(document), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        console.print(f"Written to {out}.", highlight=False, soft_wrap=True)


def _java() -> str:
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    except FileNotFoundError:
        return f"none on {platform.system()}"
    return said.partition("\n")[0]


def _print(console: Console, document: dict[str, Any]) -> None:
    if SOURCE in document:
        table = _table("read", "rows/s", "s", "outside the reader")
        for number, run in enumerate(document[SOURCE]["runs"], start=1):
            share = f"{run['outside_reader_share']:.1%}"
            table.add_row(f"run {number}", f"{run['rows_per_s']:,.0f}", f"{run['wall_s']:.1f}", share)
        console.print(table)
    if SILVER in document:
        table = _table("silver over", "wall s", "CPU s", "MiB", "Java", "Python")
        for size in document[SILVER]["sizes"]:
            table.add_row(f"{size['events']:,}", *(f"{size['median'][name]:,.1f}" for name in METRICS))
        for name in ("times", "exponent"):
            grown = document[SILVER]["growth"]
            table.add_row(name, *(f"{grown[metric][name]:.2f}" for metric in METRICS if metric in grown))
        console.print(table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _short(value: Any) -> Any:
    """With fewer digits."""
    match value:
        case dict():
            return {name: _short(member) for name, member in value.items()}
        case list():
            return [_short(member) for member in value]
        case float():
            return round(value, DIGITS)
        case _:
            return value

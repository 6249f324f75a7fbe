"""`python -m order_timers`: play all designs in all scenarios and compare them."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from order_timers.comparison import compare, show
from order_timers.scenarios import Workload

EXIT_FAILED = 1
WIDTH_MIN = 120  # a table that is cut tells nothing


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 if the file could not be written."""
    options = _parser().parse_args(arguments)
    logging.getLogger("mqclient").addHandler(logging.NullHandler())  # its complaints are part of the play
    logging.getLogger("mqclient").propagate = False
    workload = Workload(options.orders, options.minutes, options.window_minutes, options.seed)
    tell = Console(stderr=True)
    with tell.status("begins") as status:
        comparison = asyncio.run(compare(workload, status.update))
    if options.out is not None:
        try:
            options.out.write_text(json.dumps(comparison.document(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            print(f"order_timers: {options.out} could not be written: {error}", file=sys.stderr)
            return EXIT_FAILED
    if options.as_json:
        print(json.dumps(comparison.document(), indent=2))
    else:
        console = Console()
        console.width = max(console.width, WIDTH_MIN)
        show(comparison, console)
    return 0


def _parser() -> argparse.ArgumentParser:
    standard = Workload()
    parser = argparse.ArgumentParser(
        prog="python -m order_timers",
        description="Close unpaid orders in seven ways, on a simulated clock, and compare what each of them costs.",
    )
    for name, value, meaning in (
        ("orders", standard.orders, "how many orders are placed"),
        ("minutes", standard.minutes, "over how many minutes"),
        ("window-minutes", standard.window_minutes, "how long a buyer has to pay"),
        ("seed", standard.seed, "of the buyers"),
    ):
        parser.add_argument(f"--{name}", type=_at_least_1, default=value, help=f"{meaning} (default {value})")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON document to this file, too")
    parser.add_argument("--json", dest="as_json", action="store_true", help="print one JSON document, no tables")
    return parser


def _at_least_1(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


if __name__ == "__main__":
    sys.exit(main())

"""The commands `load`, `overload` and `chaos` on the command line."""

from __future__ import annotations

import argparse

from rich.console import Console

from hourglass_loadtest.shop import options as choices
from hourglass_loadtest.shop.chaos import run_chaos
from hourglass_loadtest.shop.load import run_load
from hourglass_loadtest.shop.overload import CLIMB_SECONDS, run_overload

LOAD, OVERLOAD, CHAOS = "load", "overload", "chaos"
COMMANDS = (LOAD, OVERLOAD, CHAOS)


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands and their options."""
    load = commands.add_parser(LOAD, help="Locust's buyers in a whole shop, the invariants afterwards, and a report")
    choices.add_options(load, rate_per_s=choices.RATE_PER_S, seconds=choices.SECONDS)
    load.add_argument(
        "--page",
        type=int,
        nargs="?",
        const=choices.PAGE_PORT,
        metavar="PORT",
        help=f"with Locust's page, at port {choices.PAGE_PORT} unless it is said; Ctrl-C ends the load",
    )
    overload = commands.add_parser(OVERLOAD, help="find the rate that can be sustained, and ask for twice as much")
    choices.add_options(overload, rate_per_s=10.0, seconds=60.0)
    overload.add_argument(
        "--climb-seconds", type=float, default=CLIMB_SECONDS, metavar="S", help="of each step; %(default)g"
    )
    chaos = commands.add_parser(CHAOS, help="a load while the broker is killed and PostgreSQL is restarted and killed")
    choices.add_options(chaos, rate_per_s=choices.RATE_PER_S / 2, seconds=120.0)


async def run(options: argparse.Namespace, console: Console) -> int:
    """The exit code. Raises OptionsError, RunError, and what a cluster raises."""
    wanted = choices.read_options(options)
    if options.command == OVERLOAD:
        return await run_overload(
            wanted, console, seconds=options.seconds, first=options.rate, climb=options.climb_seconds
        )
    if options.command == CHAOS:
        return await run_chaos(wanted, console)
    return await run_load(wanted, console)

"""The commands `load`, `overload` and `chaos` on the command line.

In chaos the broker is killed, and PostgreSQL restarted and killed, while buyers buy.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rich.console import Console

from hourglass_loadtest.shop import options as choices
from hourglass_loadtest.shop.load import run_load
from hourglass_loadtest.shop.options import LoadOptions, OptionsError, Target
from hourglass_loadtest.shop.overload import CLIMB_SECONDS, run_overload
from hourglass_loadtest.shop.summary import Evidence, Fault
from hourglass_local.cluster import Cluster

LOAD, OVERLOAD, CHAOS = "load", "overload", "chaos"
DOWN_S = 2.0

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


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """`at_share` is when it happens, as a share of the load's time."""

    what: str
    at_share: float
    strike: Callable[[], Awaitable[None]]
    repair: Callable[[], Awaitable[None]]


async def run_chaos(options: LoadOptions, console: Console) -> int:
    """The exit code: 1 when something is wrong that must not be. Raises OptionsError, RunError, ProcessError."""
    if options.outside is not None:
        raise OptionsError("chaos kills processes: it needs a shop of its own, so that no LOAD_* variable may be set")
    seconds = sum(stage.seconds for stage in options.stages)

    async def beside(target: Target, evidence: Evidence) -> None:
        if target.cluster is None:
            raise AssertionError("a shop of our own is a cluster")
        for fault in planned_faults(target.cluster):
            await asyncio.sleep(evidence.begun + fault.at_share * seconds - time.time())
            console.print(f"{time.time() - evidence.begun:6.1f} s: {fault.what}", highlight=False)
            at = time.time()
            await fault.strike()
            await asyncio.sleep(DOWN_S)
            await fault.repair()
            evidence.faults.append(Fault(fault.what, at, time.time()))

    return await run_load(options, console, title="load under faults", beside=beside)


def planned_faults(cluster: Cluster) -> Sequence[PlannedFault]:
    """In the order of time; those of PostgreSQL where there is one."""
    (broker, *_) = cluster.brokers

    async def start_broker() -> None:
        await broker.start()

    kill_broker = [
        PlannedFault("broker: kill -9", 0.2, broker.kill, start_broker),
        PlannedFault("broker: kill -9", 0.6, broker.kill, start_broker),
    ]
    server = cluster.shop.postgresql
    if server is None:
        return kill_broker
    faults = [
        *kill_broker,
        PlannedFault("PostgreSQL: restart", 0.4, _in_thread(server.stop), _in_thread(server.start)),
        PlannedFault("PostgreSQL: kill -9", 0.8, _in_thread(server.kill), _in_thread(server.start)),
    ]
    return sorted(faults, key=lambda fault: fault.at_share)


def _in_thread(deed: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def done() -> None:
        await asyncio.to_thread(deed)

    return done

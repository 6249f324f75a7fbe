"""`python -m hourglass_loadtest orders`: which measurements, and where their results go."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from hourglass_loadtest.machine import describe_code, describe_machine
from hourglass_loadtest.orders.bench import Measurement, measure
from hourglass_loadtest.orders.report import print_table, write_document, write_profile

SECONDS, WARM_UP_S = 30.0, 5.0
RATES_PER_S, CONNECTIONS = (200.0, 400.0), (1, 32)
OPEN_CONNECTIONS_MAX = 128  # of the open loop


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], evidence: Path) -> None:
    """The command and its options."""
    orders = commands.add_parser("orders", help="POST /orders on PostgreSQL with the broker: rate, latency, CPU")
    orders.add_argument(
        "--rate", type=float, action="append", metavar="N", help=f"open loop at so many a second; default {RATES_PER_S}"
    )
    orders.add_argument(
        "--connections", type=int, action="append", metavar="N", help=f"closed loop on so many; default {CONNECTIONS}"
    )
    orders.add_argument("--seconds", type=float, default=SECONDS, help=f"of each measurement; default {SECONDS:g}")
    orders.add_argument("--warm-up", type=float, default=WARM_UP_S, metavar="S", help=f"default {WARM_UP_S:g}")
    orders.add_argument("--sqlite", action="store_true", help="orders on SQLite instead")
    orders.add_argument("--payments", action="store_true", help="payments and the gateway run beside it")
    orders.add_argument(
        "--profile", action="store_true", help="once more under cProfile, to orders-profile.txt beside --out"
    )
    orders.add_argument(
        "--out", type=Path, metavar="FILE", help=f"for the results, as {evidence}/orders-benchmark.json"
    )


async def run_orders(options: argparse.Namespace, console: Console) -> None:
    """Run the measurements one after the other. Raises RunError, ProcessError, OSError."""
    code, machine = describe_code(Path.cwd()), describe_machine()
    results = []
    measurements = _chosen(options)
    for measurement in measurements:
        with console.status(measurement.name, refresh_per_second=1):
            results.append((measurement, await measure(measurement)))
    if results:
        print_table(console, results)
    if options.out is not None:
        write_document(options.out, results, code, machine)
        console.print(f"Written to {options.out}.", highlight=False, soft_wrap=True)
    if options.profile:
        out = (options.out or Path("orders-benchmark.json")).with_name("orders-profile.txt")
        with TemporaryDirectory(prefix="hourglass-profile-") as folder:
            statistics = Path(folder) / "orders.prof"
            result = await measure(measurements[-1], statistics)
            write_profile(out, measurements[-1], result, statistics, code)
        console.print(f"Written to {out}.", highlight=False, soft_wrap=True)


def _chosen(options: argparse.Namespace) -> list[Measurement]:
    given = options.rate or options.connections
    connections = options.connections or ([] if given else CONNECTIONS)
    rates = options.rate or ([] if given else RATES_PER_S)
    common = {"seconds": options.seconds, "warm_up_s": options.warm_up}
    where = {"postgresql": not options.sqlite, "payments": options.payments}
    return [
        *(Measurement(connections=count, **common, **where) for count in connections),
        *(Measurement(connections=OPEN_CONNECTIONS_MAX, rate_per_s=rate, **common, **where) for rate in rates),
    ]

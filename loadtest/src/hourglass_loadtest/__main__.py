"""The command line: `python -m hourglass_loadtest load`, `overload`, `chaos`, `bench`, `compare`, `micro`, `guard`,
`orders`, `telemetry`, `pipeline` and `peers`.

`client`, `orders-client` and `peers-client` are what these start as processes of their own, and `beside` what some
clients start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read on import; a server that is not there yet is no news
# uvloop forks to start a process. gRPC would wake up in the child, and dies there now and then before it has become
# that process.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from rich.console import Console

from hourglass_loadtest.bench import add_compare_parser, choose, run_bench, run_compare, run_profile
from hourglass_loadtest.guard import run_guard
from hourglass_loadtest.measure import measure
from hourglass_loadtest.measure.clients import BrokerMeter, MeasureError
from hourglass_loadtest.measure.throughput import produce_beside
from hourglass_loadtest.micro import run_micro
from hourglass_loadtest.orders.bench import add_parser, run_orders
from hourglass_loadtest.orders.client import OrdersClient, OrdersLoad
from hourglass_loadtest.peers.command import add_peers_parser, run_peers
from hourglass_loadtest.peers.command import run_client as run_peers_client
from hourglass_loadtest.peers.peer import PeerError
from hourglass_loadtest.pipeline import add_pipeline_parser, run_pipeline
from hourglass_loadtest.run import RunError
from hourglass_loadtest.shop import command as shop_commands
from hourglass_loadtest.shop.options import OptionsError
from hourglass_loadtest.telemetry_cost import add_telemetry_parser, run_telemetry
from hourglass_loadtest.workload import Workload, WorkloadError, load_workloads, parse_workload
from hourglass_local.http_client import ShopError
from hourglass_local.left import FolderError
from hourglass_local.ports import PortInUseError
from hourglass_local.process import ProcessError
from hourglass_local.waiting import NotInTimeError
from mqclient import MQClientError
from osenv.process import freeze_garbage_collector, set_malloc_trim_threshold, stop_event

if sys.platform == "win32":
    from asyncio import run as run_client_loop
else:
    from uvloop import run as run_client_loop

PROGRAM, PACKAGE = "loadtest", "hourglass_loadtest"
WORKLOADS, EVIDENCE = Path("loadtest/workloads"), Path("docs/evidence")
MICROBENCHMARKS = Path("loadtest/microbenchmarks")
FREED_BYTES_KEPT, BLOCK_BYTES_MAX = 8 * 1024 * 1024, 4 * 1024 * 1024
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 all well, 1 a run failed, 2 bad options or workload files, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "client":
            return _client(options.workload, lambda workload: _measure(options, workload))
        if options.command == "beside":
            return _client(options.workload, lambda workload: produce_beside(options.url, workload))
        if options.command == "orders-client":
            return _orders_client(options.load)
        if options.command == "peers-client":
            return _run_client(run_peers_client(options))
        if options.command == "micro":
            return _micro(options)
        if options.command == "guard":
            in_order = run_guard(MICROBENCHMARKS, EVIDENCE / "opcodes.json", Console(), store=options.store)
            return 0 if in_order else EXIT_FAILED
        if getattr(options, "page", None) is not None:
            return asyncio.run(shop_commands.run(options, Console()))  # Ctrl-C ends the load, not the report
        return asyncio.run(_until_asked_to_stop(options))
    except (WorkloadError, OptionsError, FolderError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except (RunError, ProcessError, PortInUseError, ShopError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_FAILED


def _micro(options: argparse.Namespace) -> int:
    # The evidence is of all benchmarks at their real sizes; parts of it go where --out says, or nowhere.
    whole = not options.only and not options.quick
    out = options.out or (EVIDENCE / "microbenchmarks.json" if whole else None)
    try:
        run_micro(MICROBENCHMARKS, out, Console(), only=options.only, quick=options.quick)
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def _client(workload_json: str, work: Callable[[Workload], Coroutine[Any, Any, None]]) -> int:
    try:
        workload = parse_workload(json.loads(workload_json))
    except json.JSONDecodeError as error:
        raise WorkloadError(f"the workload is not JSON: {error}") from error
    # Like uvloop, choices of an application that sends or consumes very many messages; the library makes none of them.
    set_malloc_trim_threshold(FREED_BYTES_KEPT, BLOCK_BYTES_MAX)
    freeze_garbage_collector()
    return _run_client(work(workload))


def _orders_client(load_json: str) -> int:
    async def place() -> None:
        print(json.dumps(await OrdersClient(OrdersLoad.of_json(load_json)).run()), flush=True)

    return _run_client(place())


def _run_client(work: Coroutine[Any, Any, None]) -> int:
    try:
        run_client_loop(work)
    except* (MQClientError, MeasureError, NotInTimeError, PeerError) as group:
        for leaf in _leaves(group):
            print(f"{PROGRAM}: {type(leaf).__name__}: {leaf}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    return 0


async def _measure(options: argparse.Namespace, workload: Workload) -> None:
    print(json.dumps(await measure(options.url, workload, BrokerMeter(options.broker_pid))))


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors themselves, each sentence once."""
    found: dict[str, BaseException] = {}
    for error in group.exceptions:
        for leaf in _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]:
            found.setdefault(str(leaf), leaf)
    return list(found.values())


async def _bench(options: argparse.Namespace) -> None:
    workloads = choose(load_workloads(options.workloads), options.only, quick=options.quick)
    console = Console()
    if options.profile:
        if len(options.only) != 1:
            raise WorkloadError("--profile needs one --only NAME")
        (workload,) = workloads
        await run_profile(workload, options.out or EVIDENCE / f"{workload.name}-profile.txt", console)
        return
    # The evidence is of one commit and of all workloads; parts of it go where --out says, or nowhere.
    whole = not options.only and not options.quick
    await run_bench(workloads, options.out or (EVIDENCE / "queue-benchmarks.json" if whole else None), console)


async def _until_asked_to_stop(options: argparse.Namespace) -> int:
    """Run the bench; SIGINT and SIGTERM cancel it, and it stops its processes itself."""
    asked = asyncio.create_task(stop_event().wait())
    working = asyncio.create_task(_wanted(options))
    await asyncio.wait({asked, working}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    working.cancel()
    await asyncio.wait({working})
    if working.cancelled():
        print(f"{PROGRAM}: interrupted; everything has been stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    return working.result() or 0


def _wanted(options: argparse.Namespace) -> Coroutine[Any, Any, int | None]:
    if options.command in shop_commands.COMMANDS:
        return shop_commands.run(options, Console())
    if options.command == "telemetry":
        return run_telemetry(options, Console())
    if options.command == "pipeline":
        return run_pipeline(options, Console())
    if options.command == "peers":
        return run_peers(options, Console(), EVIDENCE)
    if options.command == "compare":
        return run_compare(options, Console())
    return run_orders(options, Console()) if options.command == "orders" else _bench(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hourglass_loadtest", description="Load tests and benchmarks of Hourglass."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser("bench", help="run the workload files and print their medians")
    bench.add_argument("--only", action="append", default=[], metavar="NAME", help="this workload; may be repeated")
    bench.add_argument("--quick", action="store_true", help="a few messages and one run: shows that it works")
    bench.add_argument("--profile", action="store_true", help="one run of one produce workload under cProfile")
    bench.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"for the results; without it, only a whole bench is written, to {EVIDENCE}/queue-benchmarks.json, "
        f"and a profile, to {EVIDENCE}/NAME-profile.txt",
    )
    bench.add_argument("--workloads", type=Path, default=WORKLOADS, metavar="FOLDER", help=f"default: {WORKLOADS}")
    add_compare_parser(commands, WORKLOADS)
    micro = commands.add_parser("micro", help="run the microbenchmarks and print their medians")
    micro.add_argument("--only", metavar="WORDS", help="those whose names pytest finds by these words (its -k)")
    micro.add_argument("--quick", action="store_true", help="small sizes, few rounds: shows that it works")
    micro.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"for the results; without it, only a whole run is written, to {EVIDENCE}/microbenchmarks.json",
    )
    guard = commands.add_parser("guard", help="compare the opcodes of the microbenchmarks with a stored run's")
    guard.add_argument("--store", action="store_true", help=f"keep the counts of now in {EVIDENCE}/opcodes.json")
    add_parser(commands, EVIDENCE)
    add_telemetry_parser(commands, EVIDENCE)
    add_pipeline_parser(commands, EVIDENCE)
    add_peers_parser(commands, EVIDENCE)
    shop_commands.add_parsers(commands)
    client = commands.add_parser("client", help="one measurement, as one line of JSON (started by the bench)")
    client.add_argument("url", help="of the queue")
    client.add_argument("broker_pid", type=int, help="process id of the broker, which is measured")
    client.add_argument("workload", help="as JSON")
    orders_client = commands.add_parser("orders-client", help="one load of orders (started by `orders`)")
    orders_client.add_argument("load", help="as JSON")
    beside = commands.add_parser("beside", help="a producer beside one measurement (started by it)")
    beside.add_argument("url", help="of the queue")
    beside.add_argument("workload", help="as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())

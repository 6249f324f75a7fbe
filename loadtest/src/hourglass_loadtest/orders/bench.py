"""`python -m hourglass_loadtest orders`: a fresh shop and database for each measurement, the client as a process."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import pstats
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import psutil
from rich.console import Console
from rich.table import Table

from hourglass_loadtest.machine import describe_run, write_evidence
from hourglass_loadtest.orders.client import BEGUN, OrdersLoad
from hourglass_loadtest.orders.profiled import BEGIN
from hourglass_loadtest.run import RunError
from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import ShopSettings
from hourglass_local.plan import CURRENCY
from hourglass_local.process import MIB
from hourglass_local.shop import Product, Shop
from hourglass_local.waiting import NotInTimeError, alongside, eventually
from mqclient import Admin

SECONDS, WARM_UP_S = 30.0, 5.0
RATES_PER_S, CONNECTIONS = (200.0, 400.0), (1, 32)
OPEN_CONNECTIONS_MAX = 128  # of the open loop
BUYERS, PRODUCTS = 64, 200
UNITS = 1_000_000_000
TIMERS_TIMEOUT_S = 300.0
CLIENT_EXTRA_S = 120.0  # it may take so much longer than its load
ORDERS, PROFILED = "orders", "hourglass_loadtest.orders.profiled"
FUNCTIONS = 60
DIGITS = 3

DURABLE: Mapping[str, str] = {}  # PostgreSQL as it comes: a commit is on the disk
COMMIT_LOG_FILE_BYTES = 1024 * MIB  # as in production


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What is measured: one load on one shop. `rate_per_s` None is a closed loop."""

    connections: int
    seconds: float
    warm_up_s: float
    rate_per_s: float | None = None
    postgresql: bool = True
    payments: bool = False

    @property
    def name(self) -> str:
        how = "closed loop" if self.rate_per_s is None else f"{self.rate_per_s:g}/s"
        beside = ", payments beside it" if self.payments else ""
        database = "PostgreSQL" if self.postgresql else "SQLite"
        return f"{how}, {self.connections} connections, {database}{beside}"


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
    head = describe_run()
    results = []
    measurements = _chosen(options)
    for measurement in measurements:
        with console.status(measurement.name, refresh_per_second=1):
            results.append((measurement, await measure(measurement)))
    if results:
        print_table(console, results)
    if options.out is not None:
        rows = [{"measurement": one.name, "seconds": one.seconds, **_short(result)} for one, result in results]
        write_evidence(options.out, head | {"results": rows}, console)
    if options.profile:
        out = (options.out or Path("orders-benchmark.json")).with_name("orders-profile.txt")
        with TemporaryDirectory(prefix="hourglass-profile-") as folder:
            statistics = Path(folder) / "orders.prof"
            result = await measure(measurements[-1], statistics)
            write_profile(out, measurements[-1], result, statistics, head)
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


async def measure(measurement: Measurement, profile: Path | None = None) -> dict[str, Any]:
    """Run it; with `profile` orders runs under cProfile, whose statistics go there. Raises RunError, ProcessError."""
    with TemporaryDirectory(prefix="hourglass-orders-bench-") as folder:
        cluster = _BenchShop(Path(folder), measurement, profile)
        async with cluster, Shop(cluster.orders_url, cluster.badges) as shop:
            load = await _prepare(cluster, shop, measurement)
            measured = await alongside(_measure(cluster, load, profiled=profile is not None), cluster.watch())
            stopped = await cluster.stop()
        if stopped.killed or stopped.failed or stopped.leftover:
            raise RunError(f"{measurement.name}: the processes did not end as they should: {stopped}")
        memory = {process.name: round(process.usage.rss_peak_bytes / MIB, 1) for process in cluster.processes}
        return measured | {"rss_peak_mib": memory}


async def _prepare(cluster: Cluster, shop: Shop, measurement: Measurement) -> OrdersLoad:
    """Put products on sale."""
    product_ids = [f"seat-{number}" for number in range(PRODUCTS)]
    for product_id in product_ids:
        await shop.add_product(Product(product_id, product_id, 15_800, CURRENCY, UNITS))
    address = urlsplit(cluster.orders_url)
    return OrdersLoad(
        name="bench",
        host=address.hostname or "",
        port=address.port or 0,
        tokens=[cluster.badges.buyer(f"buyer-{number}") for number in range(BUYERS)],
        product_ids=product_ids,
        connections=measurement.connections,
        seconds=measurement.seconds,
        warm_up_s=measurement.warm_up_s,
        rate_per_s=measurement.rate_per_s,
    )


async def _measure(cluster: Cluster, load: OrdersLoad, *, profiled: bool) -> dict[str, Any]:
    pids = {process.name: process.pid for process in cluster.processes}
    if cluster.shop.postgresql is not None:
        pids["postgresql"] = cluster.shop.postgresql.pid
    meters = CpuMeters(pids)
    async with _client(load) as client:
        await _said(client, BEGUN)
        meters.start()
        if profiled:
            os.kill(cluster.orders.pid, BEGIN)
        line = await _line(client)
        cpu_s = meters.used_s()
        ended = time.monotonic()
    measured: dict[str, Any] = json.loads(line)
    cpu_s["client"] = measured.pop("client_cpu_s")
    behind_s = await _timers_behind_s(cluster, ended)
    orders = max(1.0, measured["placed"])
    return measured | {
        "cpu_s": {name: round(seconds, 2) for name, seconds in cpu_s.items()},
        "cpu_ms_per_order": {name: round(seconds * 1000 / orders, 3) for name, seconds in cpu_s.items()},
        "timers_behind_s": behind_s,
    }


async def _timers_behind_s(cluster: Cluster, ended: float) -> float:
    """How long after the last answer the last order had its timer in the broker."""
    async with Shop(cluster.orders_url, cluster.badges) as shop, Admin(cluster.url) as admin:
        placed = sum((await shop.statistics()).orders.values())

        async def all_wait() -> bool:
            (status,) = await admin.broker_statuses()
            # A timer that is set late waits at a lower level, and again afterwards for the rest.
            return sum(level.waiting for level in status.delay_levels) >= placed

        try:
            await eventually(all_wait, TIMERS_TIMEOUT_S, f"timers of {placed} orders", interval_s=0.1)
        except NotInTimeError as error:
            raise RunError(str(error)) from error
    return time.monotonic() - ended


class _BenchShop(Cluster):
    """Name server, broker and orders, orders under cProfile if wanted."""

    def __init__(self, folder: Path, measurement: Measurement, profile: Path | None) -> None:
        self._profile = profile
        super().__init__(
            folder,
            payments=measurement.payments,
            commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
            shop=ShopSettings(postgresql=measurement.postgresql, postgresql_settings=DURABLE),
        )

    def _program(self, name: str, program: list[str]) -> list[str]:
        return program if self._profile is None or name != ORDERS else [PROFILED, str(self._profile), *program]


@asynccontextmanager
async def _client(load: OrdersLoad) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process that places the orders; it is gone at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hourglass_local.child",  # it ends with us, however we end
        "hourglass_loadtest",
        "orders-client",
        load.to_json(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in the terminal is ours alone
    )
    try:
        async with asyncio.timeout(load.warm_up_s + load.seconds + CLIENT_EXTRA_S):
            yield process
    except TimeoutError:
        raise RunError(f"the client was not done after {load.seconds + CLIENT_EXTRA_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _said(client: asyncio.subprocess.Process, word: str) -> None:
    if (line := await _line(client)) != word:
        raise RunError(f"the client said {line!r}, and {word!r} was expected")


async def _line(client: asyncio.subprocess.Process) -> str:
    if client.stdout is None:
        raise AssertionError("the client's output is a pipe")
    line = (await client.stdout.readline()).decode().strip()
    if not line:
        raise RunError(f"the client ended with code {await client.wait()}")
    return line


class CpuMeters:
    """Processes by name, each with its children, whether they still run or have ended."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._before = self._seconds()

    def start(self) -> None:
        """Count from now."""
        self._before = self._seconds()

    def used_s(self) -> dict[str, float]:
        """Seconds since `start`, by name."""
        return {name: seconds - self._before[name] for name, seconds in self._seconds().items()}

    def _seconds(self) -> dict[str, float]:
        return {name: _with_children(process) for name, process in self._processes.items()}


def _with_children(process: psutil.Process) -> float:
    own = process.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:  # it has ended just now, and is its parent's to count
            continue
        total += times.user + times.system
    return float(total)


def print_table(console: Console, results: Sequence[tuple[Measurement, Mapping[str, Any]]]) -> None:
    """One row for each measurement."""
    table = Table("POST /orders")
    for heading in ("placed/s", "p50 ms", "p99 ms", "max ms", "other answers", "timers behind s", "CPU ms an order"):
        table.add_column(heading, justify="right")
    for measurement, result in results:
        others = {status: count for status, count in result["statuses"].items() if status != "201"}
        cpu = ", ".join(f"{name} {spent:.2f}" for name, spent in result["cpu_ms_per_order"].items())
        numbers = [f"{result[name]:.1f}" for name in ("rate_per_s", "p50_ms", "p99_ms", "max_ms")]
        table.add_row(measurement.name, *numbers, str(others or "none"), f"{result['timers_behind_s']:.1f}", cpu)
    console.print(table)


def write_profile(
    path: Path, measurement: Measurement, result: Mapping[str, Any], statistics: Path, head: Mapping[str, Any]
) -> None:
    """The functions of orders with the most time of their own, and of all. Raises OSError."""
    parts = [
        f"POST /orders, {measurement.name}\n"
        f"commit {head['commit']}{' with changes' if head['dirty'] else ''}\n"
        f"{result['placed']:,.0f} orders placed at {result['rate_per_s']:,.0f}/s with orders under cProfile, in"
        " seconds of processor time. It makes function calls several times as slow as they are: compare the shares.\n"
    ]
    for order in ("tottime", "cumulative"):
        text = io.StringIO()
        pstats.Stats(str(statistics), stream=text).strip_dirs().sort_stats(order).print_stats(FUNCTIONS)
        lines = [line.rstrip() for line in text.getvalue().splitlines() if str(statistics) not in line]
        parts.append(f"--- by {order} ---\n" + "\n".join(lines).strip() + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts), encoding="utf-8")


def _short(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in result.items()}

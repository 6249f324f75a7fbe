"""Runs the benchmark of POST /orders: a fresh shop and database for each measurement, and the client as a process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from hourglass_loadtest.orders.client import BEGUN
from hourglass_loadtest.orders.load import OrdersLoad
from hourglass_loadtest.orders.processes import CpuMeters
from hourglass_loadtest.orders.profiled import BEGIN
from hourglass_loadtest.run import RunError
from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import ShopSettings
from hourglass_local.plan import CURRENCY
from hourglass_local.process import MIB
from hourglass_local.shop import Product, Shop
from hourglass_local.waiting import NotInTimeError, alongside, eventually
from mqclient import Admin

BUYERS, PRODUCTS = 64, 200
UNITS = 1_000_000_000
DURABLE: Mapping[str, str] = {}  # PostgreSQL as it comes: a commit is on the disk
COMMIT_LOG_FILE_BYTES = 1024 * MIB  # as in production
TIMERS_TIMEOUT_S = 300.0
CLIENT_EXTRA_S = 120.0  # it may take so much longer than its load
ORDERS, PROFILED = "orders", "hourglass_loadtest.orders.profiled"


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

"""The demonstration: orders are placed, nobody pays, and they close by themselves."""

from __future__ import annotations

import asyncio
import time
from typing import NoReturn

from rich.console import Console

from hourglass_local.buyers import make_plan, place_all
from hourglass_local.cluster import Cluster
from hourglass_local.delay_levels import with_payment_window
from hourglass_local.demo_config import DemoConfig
from hourglass_local.progress import Counts, Progress
from hourglass_local.report import print_report
from hourglass_local.shop import Order, Shop, Statistics
from hourglass_local.summary import CLOSED, Shopped, problems, summarize
from hourglass_local.waiting import NotInTimeError, alongside, eventually
from mqclient import Admin

COMMIT_LOG_FILE_BYTES = 64 * 1024 * 1024
WATCH_INTERVAL_S = 0.2
EXIT_GOOD, EXIT_FAILED = 0, 1


async def run_demo(config: DemoConfig, console: Console) -> int:
    """Run everything in `config.folder`, which is empty; returns the exit code.

    Raises ProcessError when a process dies, and ShopError when the shop refuses; everything is stopped then.
    """
    begin = time.monotonic()
    cluster = Cluster(
        config.folder,
        delay_levels=with_payment_window(config.payment_window),
        commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
    )
    with Progress(console) as progress:
        async with cluster:
            names = ", ".join(process.name for process in cluster.processes)
            progress.say(f"Started {names} in {time.monotonic() - begin:.1f} s; level 16 is {config.payment_window}.")
            async with Shop(cluster.orders_url) as shop:
                demonstration = _Demonstration(config, cluster, shop, progress)
                shopped = await alongside(demonstration.run(), cluster.watch(), demonstration.watch())
            stopped = await cluster.stop()
    summary = summarize(shopped, cluster.processes, stopped, time.monotonic() - begin)
    (config.folder / "summary.json").write_text(summary.to_json(), encoding="utf-8")
    print_report(console, summary, config.folder)
    found = problems(summary, shopped, stopped)
    for sentence in found:
        console.print(f"FAILED: {sentence}.", highlight=False, soft_wrap=True)
    return EXIT_FAILED if found else EXIT_GOOD


class _Demonstration:
    """One run on a cluster that works."""

    def __init__(self, config: DemoConfig, cluster: Cluster, shop: Shop, progress: Progress) -> None:
        self._config = config
        self._cluster = cluster
        self._shop = shop
        self._progress = progress
        self._plan = make_plan(config.orders, config.buyers, config.seed)
        self._placed: dict[str, Order] = {}
        self._statistics = Statistics({}, 0)

    async def run(self) -> Shopped:
        """Returns when every order has closed, or when that takes far too long. Raises ShopError."""
        for product in self._plan.products:
            await self._shop.add_product(product)
        before = await self._shop.products()
        await self._place()
        await self._settle()
        return Shopped(
            orders_wanted=self._config.orders,
            orders=await self._shop.orders(),
            products_before=before,
            products_after=await self._shop.products(),
            messages_stored=await self._messages_stored(),
        )

    async def watch(self) -> NoReturn:
        """Keep the statistics and the progress up to date. Raises ShopError."""
        while True:
            self._statistics = await self._shop.statistics()
            self._progress.show(
                Counts(self._config.orders, len(self._placed), self._closed, next_close_s=self._next_close_s())
            )
            await asyncio.sleep(WATCH_INTERVAL_S)

    @property
    def _closed(self) -> int:
        return self._statistics.orders.get(CLOSED, 0)

    async def _place(self) -> None:
        begin = time.monotonic()
        await place_all(self._shop, self._plan.orders, self._config.buyers, self._note)
        seconds = time.monotonic() - begin
        self._progress.say(
            f"{len(self._placed):,} orders placed by {self._config.buyers} buyers in {seconds:.1f} s; nobody pays."
        )

    def _note(self, order: Order) -> None:
        self._placed[order.order_id] = order

    async def _settle(self) -> None:
        """Until every order has closed and every message is published, or the time for that is over."""
        last_expiry_ms = max(order.expires_at_ms for order in self._placed.values())
        timeout_s = last_expiry_ms / 1000 - time.time() + self._config.settle_timeout_s
        try:
            await eventually(self._settled, timeout_s, "every order closed")
        except NotInTimeError as error:
            self._progress.say(f"Waited long enough: {error}.")  # the summary counts what is pending, and fails

    def _settled(self) -> bool:
        return self._closed == len(self._placed) and not self._statistics.unpublished_messages

    def _next_close_s(self) -> float | None:
        """Time to the next expiry: orders expire in the order in which they were placed."""
        expiries = sorted(order.expires_at_ms for order in self._placed.values())
        return expiries[self._closed] / 1000 - time.time() if self._closed < len(expiries) else None

    async def _messages_stored(self) -> int:
        async with Admin(self._cluster.url) as admin:
            return sum(status.messages_stored for status in await admin.broker_statuses())

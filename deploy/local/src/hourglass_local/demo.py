"""The demonstration: its settings, its run, and its progress on the console.

Orders are placed; about half are paid, some of them in the last moment, through a gateway that declines, comes late,
says things twice and forgets to say them; they are shipped, cancelled, confirmed, refunded in part, or complete by
themselves; and the rest close by themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from rich.console import Console
from rich.status import Status

from hourglass_local.books import Standing, read_books
from hourglass_local.buyers import Buyers, Deed
from hourglass_local.cluster import QUICK_CHECKS, SYNC_MASTER, Cluster
from hourglass_local.cluster_shop import ShopSettings, with_payment_window
from hourglass_local.left import Left, measured_lateness
from hourglass_local.pair import first_difference, settled_logs
from hourglass_local.plan import Pays, make_plan
from hourglass_local.shop import CLOSED, PaymentDesk, Shop
from hourglass_local.summary import Shopped, print_report, problems, summarize
from hourglass_local.waiting import NotInTimeError, alongside, eventually
from mqclient import Admin

ORDERS_VARIABLE = "DEMO_ORDERS"
ORDERS_MIN, ORDERS_MAX = len(Pays), 100_000  # at least one buyer of each kind
COMMIT_LOG_FILE_BYTES = 64 * 1024 * 1024
WATCH_INTERVAL_S, SETTLE_INTERVAL_S = 0.2, 0.25
EXIT_GOOD, EXIT_FAILED = 0, 1
PLAIN_INTERVAL_S = 2.0
SHOWN_MIN_S = 0.05  # less would be printed as 0.0

SHOP = ShopSettings(
    completion_after_ms=5_000,
    gateway_failures="declined=0.08,late=0.1:1500,duplicated=0.1,reordered=0.1,never=0.05",
    gateway_silence_ms=2_000,
    sandbox_sign_in=True,
    sample_catalogue=True,
)


class DemoConfigError(ValueError):
    """A setting that cannot be used; the message names it, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """Raises DemoConfigError."""

    folder: Path = Path(".demo")
    orders: int = 200
    buyers: int = 20
    payment_window: str = "6s"  # level 16, which is 30 minutes in earnest
    settle_timeout_s: float = 20.0  # how long after the last expiry an order may still be pending
    seed: int = 16

    def __post_init__(self) -> None:
        if not ORDERS_MIN <= self.orders <= ORDERS_MAX:
            raise DemoConfigError(f"{ORDERS_VARIABLE}={self.orders}: allowed are {ORDERS_MIN} to {ORDERS_MAX}")


def parse_demo_config(environment: Mapping[str, str], folder: Path) -> DemoConfig:
    """The configuration that the environment makes. Raises DemoConfigError."""
    text = environment.get(ORDERS_VARIABLE)
    if text is None:
        return DemoConfig(folder=folder)
    if not (text.isascii() and text.isdigit()):
        raise DemoConfigError(f"{ORDERS_VARIABLE}={text!r} is not a whole number of {ORDERS_MIN} to {ORDERS_MAX}")
    return DemoConfig(folder=folder, orders=int(text))


async def run_demo(config: DemoConfig, console: Console) -> int:
    """Run everything in `config.folder`, which is empty; returns the exit code.

    Raises ProcessError when a process dies, and ShopError when a service rejects; everything is stopped then.
    """
    begin = time.monotonic()
    cluster = Cluster(
        config.folder,
        replicas_of=SYNC_MASTER,
        delay_levels=with_payment_window(config.payment_window),
        commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
        broker_settings=QUICK_CHECKS,
        shop=SHOP,
    )
    with Progress(console) as progress:
        async with cluster:
            left = Left.of(cluster)
            left.write(config.folder)
            names = ", ".join(process.name for process in cluster.processes)
            progress.say(f"Started {names} in {time.monotonic() - begin:.1f} s; level 16 is {config.payment_window}.")
            badges = cluster.badges
            async with Shop(cluster.orders_url, badges) as shop, PaymentDesk(cluster.payments_url, badges) as desk:
                demonstration = _Demonstration(config, cluster, shop, desk, progress)
                shopped = await alongside(demonstration.run(), cluster.watch(), demonstration.watch())
            stopped = await cluster.stop()
    summary = summarize(
        shopped,
        cluster.processes,
        stopped,
        time.monotonic() - begin,
        logs_differ_at=first_difference(*_stores(cluster), shopped.logs.replica_durable_end),
    )
    replace(left, lateness_ms_by_level=shopped.lateness_ms_by_level).write(config.folder)
    (config.folder / "summary.json").write_text(summary.to_json(), encoding="utf-8")
    print_report(console, summary, shopped, config.folder)
    found = problems(summary, shopped, stopped)
    for sentence in found:
        console.print(f"FAILED: {sentence}.", highlight=False, soft_wrap=True)
    return EXIT_FAILED if found else EXIT_GOOD


def _stores(cluster: Cluster) -> tuple[Path, Path]:
    """Where master and replica keep their messages."""
    (master,), (replica,) = cluster.brokers, cluster.replicas
    return cluster.store_folder(master), cluster.store_folder(replica)


class _Demonstration:
    """One run on a cluster that works."""

    def __init__(self, config: DemoConfig, cluster: Cluster, shop: Shop, desk: PaymentDesk, progress: Progress) -> None:
        self._config = config
        self._cluster = cluster
        self._shop = shop
        self._desk = desk
        self._progress = progress
        self._plan = make_plan(config.orders, config.buyers, config.seed)
        self._buyers = Buyers(shop, desk, config.buyers)

    async def run(self) -> Shopped:
        """Returns when every order and every payment is decided, or when that takes far too long. Raises ShopError."""
        for product in self._plan.products:
            await self._shop.change_total(product.product_id, product.units)
        before = await self._shop.products()
        standing = Standing(self._cluster, before)
        await self._trade()
        await self._settle(standing)
        return Shopped(
            orders_wanted=self._config.orders,
            placed=self._buyers.placed.keys(),
            attempts=list(self._buyers.attempts.values()),
            cancelled=self._buyers.cancelled,
            endings={deed: self._buyers.endings.ids(deed) for deed in Deed},
            products_before=before,
            books=await read_books(self._shop, self._desk),
            invariants=await standing.results(),
            messages_stored=await self._messages_stored(),
            logs=await settled_logs(self._cluster.broker_addresses[0], self._cluster.replica_addresses[0]),
            lateness_ms_by_level=await measured_lateness(self._cluster),
        )

    async def watch(self) -> NoReturn:
        """Show the progress. Raises ShopError."""
        while True:
            statistics = await self._shop.statistics()
            counts = Counts(
                self._config.orders,
                len(self._buyers.placed),
                statistics.paid_orders,
                statistics.orders[CLOSED],
                next_close_s=self._next_close_s(),
            )
            self._progress.show(counts)
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _trade(self) -> None:
        begin = time.monotonic()
        async with self._buyers as buyers:
            await buyers.place(self._plan.orders)
            self._progress.say(
                f"{len(buyers.placed):,} orders placed by {self._config.buyers} buyers in"
                f" {time.monotonic() - begin:.1f} s; about half of them will be paid."
            )

    async def _settle(self, standing: Standing) -> None:
        """Until nothing moves any more, or the time for that is over."""
        last_expiry_ms = max(order.expires_at_ms for order in self._buyers.placed.values())
        timeout_s = last_expiry_ms / 1000 - time.time() + self._config.settle_timeout_s
        is_settled = partial(standing.is_settled, self._shop, shipped_complete=True)
        try:
            await eventually(
                is_settled, timeout_s, "every order and every payment decided", interval_s=SETTLE_INTERVAL_S
            )
        except NotInTimeError as error:
            self._progress.say(f"Waited long enough: {error}.")  # the summary counts what is left over, and fails

    def _next_close_s(self) -> float | None:
        """Time to the next expiry of an order that its buyer has neither paid nor cancelled."""
        paid = {order_id for order_id, attempt in self._buyers.attempts.items() if attempt.payment is not None}
        decided = paid | self._buyers.cancelled
        open_orders = [order for order_id, order in self._buyers.placed.items() if order_id not in decided]
        expiries_s = [order.expires_at_ms / 1000 - time.time() for order in open_orders]
        return min((seconds for seconds in expiries_s if seconds > 0), default=0.0) if expiries_s else None

    async def _messages_stored(self) -> int:
        async with Admin(self._cluster.url) as admin:
            return sum(status.messages_stored for status in await admin.broker_statuses())


@dataclass(frozen=True, slots=True)
class Counts:
    """Where the orders are; `next_close_s` is the time to the next expiry, None when none is known."""

    total: int
    placed: int = 0
    paid: int = 0
    closed: int = 0
    next_close_s: float | None = None

    def __str__(self) -> str:
        waiting = max(0, self.placed - self.paid - self.closed)
        text = f"placed {self.placed:,} of {self.total:,}   paid {self.paid:,}   waiting {waiting:,}"
        text += f"   closed {self.closed:,}"
        if not waiting or self.next_close_s is None:
            return text
        if self.next_close_s >= SHOWN_MIN_S:
            return f"{text}   next closing in {self.next_close_s:.1f} s"
        return f"{text}   closing"


class Progress:
    """A context manager. `show` may be called as often as one likes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = console.status("") if console.is_terminal else None
        self._printed_at = float("-inf")
        self._printed = ""

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._console.print(sentence, highlight=False)

    def show(self, counts: Counts) -> None:
        """The state of things now; without a terminal a line every two seconds, if something is new."""
        text = str(counts)
        if self._status is not None:
            self._status.update(text)
        elif time.monotonic() - self._printed_at >= PLAIN_INTERVAL_S and text != self._printed:
            self._printed_at, self._printed = time.monotonic(), text
            self.say(text)

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

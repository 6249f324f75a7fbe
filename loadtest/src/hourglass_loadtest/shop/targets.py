"""The shop under load: local processes that this process starts, or one that runs already.

Invariant: everything that was started has ended when the block of `target_of` ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hourglass_loadtest.run import RunError
from hourglass_loadtest.shop.keeping import SHOP_FOLDER, leave, remembered_lateness
from hourglass_loadtest.shop.options import POSTGRESQL, LoadOptions, OptionsError, Outside
from hourglass_local.badges import Badges
from hourglass_local.cluster import SYNC_MASTER, Cluster
from hourglass_local.delay_levels import PAYMENT_WINDOW_LEVEL, with_payment_window
from hourglass_local.demo import empty_folder
from hourglass_local.left import LevelLateness
from hourglass_local.plan import CURRENCY
from hourglass_local.process import MIB
from hourglass_local.shop import Product, Shop
from hourglass_local.shop_settings import WEEK_MS, ShopSettings, read_keys
from hourglass_local.standing import Databases, Standing

PRODUCTS, UNITS, PRICE_MINOR = 200, 1_000_000, 15_800
COMMIT_LOG_FILE_BYTES = 256 * MIB
# A gateway as they are: it declines, is late, and says things twice or not at all.
GATEWAY_FAILURES = "declined=0.03,late=0.02:1500,duplicated=0.02,reordered=0.02,never=0.01"
DURABLE: Mapping[str, str] = {}  # PostgreSQL as it comes: a commit is on the disk


@dataclass(frozen=True, slots=True)
class Target:
    """A shop with its products on sale. `pids` says which local processes run now, by name; `standing` None: nobody may
    look into the databases. `cluster` is None for a shop that runs already.
    """

    orders_url: str
    payments_url: str
    badges: Badges
    product_ids: tuple[str, ...]
    queue_url: str | None
    standing: Standing | None
    pids: Callable[[], Mapping[str, int]]
    cluster: Cluster | None
    description: Mapping[str, object]


@asynccontextmanager
async def target_of(options: LoadOptions, console: Console, *, quick_retries: bool = False) -> AsyncIterator[Target]:
    """The shop of these options. With `quick_retries` a message that could not be handled comes back after a second.

    Local processes leave what they have stored in the report's folder.

    Raises OptionsError, RunError, FolderError, ProcessError, PortInUseError, OSError.
    """
    if options.outside is not None:
        yield await _outside(options.outside)
        return
    folder = options.folder / SHOP_FOLDER
    with empty_folder(folder):
        cluster = _cluster(folder, options, quick_retries=quick_retries)
        lateness: Mapping[str, LevelLateness] = {}
        try:
            async with _local(cluster, options) as target:
                yield target
                lateness = await remembered_lateness(cluster)
        finally:
            console.print(leave(cluster, lateness, options.keep_mib), highlight=False, soft_wrap=True)


def _cluster(folder: Path, options: LoadOptions, *, quick_retries: bool) -> Cluster:
    return Cluster(
        folder,
        slaves_of=SYNC_MASTER if options.pair else None,
        delay_levels=_delay_levels(options.payment_window, quick=quick_retries),
        commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
        shop=ShopSettings(
            postgresql=options.database == POSTGRESQL,
            postgresql_settings=DURABLE,
            gateway_failures=GATEWAY_FAILURES,
            gateway_seed=options.seed,
            gateway_silence_ms=2_000,
        ),
    )


@asynccontextmanager
async def _local(cluster: Cluster, options: LoadOptions) -> AsyncIterator[Target]:
    async with cluster:
        async with Shop(cluster.orders_url, cluster.badges) as shop:
            before = await _stocked(shop, [f"seat-{number:03}" for number in range(PRODUCTS)])
        yield Target(
            orders_url=cluster.orders_url,
            payments_url=cluster.payments_url,
            badges=cluster.badges,
            product_ids=tuple(before),
            queue_url=cluster.url,
            standing=Standing(cluster, before),
            pids=lambda: _pids(cluster),
            cluster=cluster,
            description={
                "shop": "local processes",
                "database": options.database,
                "broker": "a pair, replicated synchronously" if options.pair else "one, flushed synchronously",
                "payment_window": options.payment_window,
                "gateway": GATEWAY_FAILURES,
            },
        )
        stopped = await cluster.stop()
    if stopped.killed or stopped.failed or stopped.leftover:
        raise RunError(f"the processes did not end as they should: {stopped}")


async def _outside(outside: Outside) -> Target:
    try:
        badges = Badges(read_keys(outside.auth_keys_file))
    except (OSError, ValueError) as error:
        raise OptionsError(f"LOAD_AUTH_KEYS_FILE={str(outside.auth_keys_file)!r}: {error}") from error
    async with Shop(outside.orders_url, badges) as shop:
        before = await shop.products() or await _stocked(shop, [f"seat-{number:03}" for number in range(PRODUCTS)])
    # What was on sale before is the constant of the stock: products are never changed.
    standing = Standing(Databases(outside.databases, WEEK_MS), before) if outside.databases else None
    return Target(
        orders_url=outside.orders_url,
        payments_url=outside.payments_url,
        badges=badges,
        product_ids=tuple(before),
        queue_url=outside.queue_url,
        standing=standing,
        pids=dict,
        cluster=None,
        description={"shop": f"{outside.orders_url} and {outside.payments_url}, which ran already"},
    )


async def _stocked(shop: Shop, product_ids: list[str]) -> dict[str, Product]:
    for product_id in product_ids:
        await shop.add_product(Product(product_id, f"Seat {product_id}", PRICE_MINOR, CURRENCY, UNITS))
    return await shop.products()


def _pids(cluster: Cluster) -> dict[str, int]:
    pids = {process.name: process.pid for process in cluster.processes if process.running}
    server = cluster.shop.postgresql
    return pids | ({"postgresql": server.pid} if server is not None and server.is_running else {})


def _delay_levels(window: str, *, quick: bool) -> str:
    """RocketMQ's, or a second for each retry; level 16 is the time to pay."""
    if not quick:
        return with_payment_window(window)
    return f"{'1s ' * (PAYMENT_WINDOW_LEVEL - 1)}{window} 1h 2h"

"""What may be told to a load: its options, the shop that they make, and how much of it stays for the pipeline.

The broker's store and the services' SQLite files stay, for `make pipeline FROM=load`. Invariant: no more than
`KEEP_MIB` (or --keep) stays, and only of the last load. A store that has grown larger goes.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from hourglass_loadtest.run import RunError
from hourglass_loadtest.users.plan import Stage, parse_stages, usual_stages
from hourglass_local.books import Databases, Standing
from hourglass_local.cluster import SYNC_MASTER, Cluster
from hourglass_local.cluster_shop import WEEK_MS, ShopSettings, payment_window_ms, read_keys, with_payment_window
from hourglass_local.http_client import AccessTokens
from hourglass_local.left import LEFT_FILE, Left, LevelLateness, empty_folder, measured_lateness
from hourglass_local.plan import CURRENCY
from hourglass_local.process import MIB
from hourglass_local.shop import Product, Shop

SQLITE, POSTGRESQL = "sqlite", "postgresql"
SEED, RATE_PER_S, SECONDS = 16, 20.0, 300.0
PAYMENT_WINDOW = "20s"
PAGE_PORT = 8089
PREFIX = "LOAD_"
# A shop that runs already: orders and payments are needed, the others tell more.
URL_VARIABLES = ("ORDERS_URL", "PAYMENTS_URL", "AUTH_KEYS_FILE", "QUEUE_URL")
DATABASE_VARIABLES = ("ORDERS_DATABASE_URL", "PAYMENTS_DATABASE_URL", "GATEWAY_DATABASE_URL")
# A gateway as they are: it declines, is late, and says things twice or not at all.
GATEWAY_FAILURES = "declined=0.03,late=0.02:1500,duplicated=0.02,reordered=0.02,never=0.01"

SHOP_FOLDER = "shop"  # in the folder of the report
KEEP_MIB = 4096

REPORT_FOLDER = Path(".load")


class OptionsError(ValueError):
    """An option or a variable that cannot be used; the message names it and says what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """A shop that runs already. `databases` are URLs by service, or nothing: then invariants are not checked."""

    orders_url: str
    payments_url: str
    auth_keys_file: Path
    queue_url: str | None = None
    databases: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """One load. `stages` empty: Locust's page says how many users there are."""

    stages: Sequence[Stage]
    database: str = SQLITE
    pair: bool = False
    payment_window: str = PAYMENT_WINDOW
    seed: int = SEED
    page_port: int | None = None
    outside: Outside | None = None
    folder: Path = REPORT_FOLDER
    keep_mib: int = KEEP_MIB
    out: Path | None = None


def add_options(parser: argparse.ArgumentParser, *, rate_per_s: float, seconds: float) -> None:
    """Those that every command has."""
    parser.add_argument("--rate", type=_positive, default=rate_per_s, metavar="N", help="visits a second; %(default)g")
    parser.add_argument("--seconds", type=_positive, default=seconds, metavar="S", help="%(default)g")
    parser.add_argument(
        "--stages",
        type=_stages,
        metavar="TEXT",
        help="instead of both, such as 10x30,20x60: see docs/guides/benchmarks.md",
    )
    parser.add_argument(
        "--database", choices=(SQLITE, POSTGRESQL), default=SQLITE, help="of local processes; %(default)s"
    )
    parser.add_argument("--pair", action="store_true", help="a broker with a replica instead of a single one")
    parser.add_argument(
        "--payment-window", type=_window, default=PAYMENT_WINDOW, metavar="S", help="level 16; %(default)s, not 30m"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of what buyers do; %(default)s")
    parser.add_argument("--folder", type=Path, default=REPORT_FOLDER, help="of the report; %(default)s")
    parser.add_argument(
        "--keep", type=_whole, default=KEEP_MIB, metavar="MIB", help="leave a store up to this size; %(default)s"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="a copy of the results, as in docs/evidence")


def read_options(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> LoadOptions:
    """Raises OptionsError."""
    page_port = getattr(options, "page", None)
    stages = options.stages
    if stages is None:
        stages = [] if page_port is not None else usual_stages(options.rate, options.seconds)
    return LoadOptions(
        stages=stages,
        database=options.database,
        pair=options.pair,
        payment_window=options.payment_window,
        seed=options.seed,
        page_port=page_port,
        outside=read_outside(environment),
        folder=options.folder,
        keep_mib=options.keep,
        out=options.out,
    )


def read_outside(environment: Mapping[str, str]) -> Outside | None:
    """The shop that LOAD_* variables name, or None without any. Raises OptionsError."""
    known = {PREFIX + name: name for name in (*URL_VARIABLES, *DATABASE_VARIABLES)}
    values = {known[name]: text for name, text in environment.items() if name in known}
    if unknown := sorted(name for name in environment if name.startswith(PREFIX) and name not in known):
        raise OptionsError(f"unknown variable {unknown[0]}; known are {', '.join(known)}")
    if not values:
        return None
    if missing := [PREFIX + name for name in URL_VARIABLES[:3] if not values.get(name)]:
        raise OptionsError(f"{', '.join(missing)} is not set; a shop that runs already needs it")
    for name in URL_VARIABLES[:2]:
        if not values[name].startswith(("http://", "https://")):
            raise OptionsError(f"{PREFIX}{name}={values[name]!r}: allowed is a URL such as http://127.0.0.1:8001")
    databases = {name: values[name] for name in DATABASE_VARIABLES if name in values}
    if databases and len(databases) < len(DATABASE_VARIABLES):
        missing = [PREFIX + name for name in DATABASE_VARIABLES if name not in databases]
        raise OptionsError(f"{', '.join(missing)} is not set; the invariants need all databases, or none is given")
    return Outside(
        orders_url=values["ORDERS_URL"].rstrip("/"),
        payments_url=values["PAYMENTS_URL"].rstrip("/"),
        auth_keys_file=Path(values["AUTH_KEYS_FILE"]),
        queue_url=values.get("QUEUE_URL"),
        databases={name.partition("_")[0].lower(): url for name, url in databases.items()},
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(text)


def _stages(text: str) -> list[Stage]:
    try:
        return parse_stages(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _window(text: str) -> str:
    try:
        payment_window_ms(with_payment_window(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


# The shop under load: local processes that this process starts, or one that runs already.
#
# Invariant: everything that was started has ended when the block of `target_of` ends.

UNITS, PRICE_MINOR = 1_000_000, 15_800
PRODUCT_IDS = tuple(f"seat-{number:03}" for number in range(200))
COMMIT_LOG_FILE_BYTES = 256 * MIB
DURABLE: Mapping[str, str] = {}  # PostgreSQL as it comes: a commit is on the disk


@dataclass(frozen=True, slots=True)
class Target:
    """A shop with its products on sale. `pids` says which local processes run now, by name; `standing` None: the
    databases are not accessible. `cluster` is None for a shop that runs already.
    """

    orders_url: str
    payments_url: str
    badges: AccessTokens
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
        replicas_of=SYNC_MASTER if options.pair else None,
        delay_levels=with_payment_window(options.payment_window, quick_retries=quick_retries),
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
            before = await stocked(shop)
        yield Target(
            orders_url=cluster.orders_url,
            payments_url=cluster.payments_url,
            badges=cluster.badges,
            product_ids=PRODUCT_IDS,
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
        badges = AccessTokens(read_keys(outside.auth_keys_file))
    except (OSError, ValueError) as error:
        raise OptionsError(f"LOAD_AUTH_KEYS_FILE={str(outside.auth_keys_file)!r}: {error}") from error
    async with Shop(outside.orders_url, badges) as shop:
        before = await stocked(shop)
    # What was on sale before is the constant of the stock: products are never changed.
    standing = Standing(Databases(outside.databases, WEEK_MS), before) if outside.databases else None
    return Target(
        orders_url=outside.orders_url,
        payments_url=outside.payments_url,
        badges=badges,
        product_ids=PRODUCT_IDS,
        queue_url=outside.queue_url,
        standing=standing,
        pids=dict,
        cluster=None,
        description={"shop": f"{outside.orders_url} and {outside.payments_url}, which ran already"},
    )


async def stocked(shop: Shop) -> dict[str, Product]:
    """All products of the shop; those of the load are put on sale unless an earlier load has."""
    for product_id in sorted(set(PRODUCT_IDS) - (await shop.products()).keys()):
        await shop.add_product(Product(product_id, f"Seat {product_id}", PRICE_MINOR, CURRENCY, UNITS))
    return await shop.products()


def _pids(cluster: Cluster) -> dict[str, int]:
    pids = {process.name: process.pid for process in cluster.processes if process.running}
    server = cluster.shop.postgresql
    return pids | ({"postgresql": server.pid} if server is not None and server.is_running else {})


async def remembered_lateness(cluster: Cluster) -> dict[str, LevelLateness]:
    """What the brokers say, as long as they run; nothing of one that was started anew, which has forgotten the rest.

    Raises MQClientError.
    """
    if any(len(broker.pids) > 1 for broker in cluster.brokers):
        return {}
    return await measured_lateness(cluster)


def leave(cluster: Cluster, lateness: Mapping[str, LevelLateness], keep_mib: int) -> str:
    """Once everything has ended; returns a sentence that says what stays. Raises OSError."""
    if not all(cluster.store_folder(broker).is_dir() for broker in (*cluster.brokers, *cluster.replicas)):
        return f"Nothing is left in {cluster.folder}: the brokers have not started."
    for replica in cluster.replicas:
        shutil.rmtree(cluster.store_folder(replica))  # the same messages once more
    used_mib = _used_bytes(cluster.folder) / MIB
    if used_mib <= keep_mib:
        replace(Left.of(cluster), lateness_ms_by_level=lateness).write(cluster.folder)
        return f"Left in {cluster.folder}: {used_mib:.0f} MiB, for `make pipeline FROM=load`."
    for broker in cluster.brokers:
        shutil.rmtree(cluster.store_folder(broker))
    (cluster.folder / LEFT_FILE).unlink(missing_ok=True)
    return f"The broker's messages were not kept: {used_mib:.0f} MiB are more than the {keep_mib} MiB of --keep."


def _used_bytes(folder: Path) -> int:
    """On the disk: files of a store are as long as they may grow, and mostly holes."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())

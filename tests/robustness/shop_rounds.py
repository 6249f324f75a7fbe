"""Figure G10: orders under faults. Buyers trade with a real shop while its processes are killed and paused
(shop_plan.py); when it is quiet again, every standing invariant holds, and whatever a client was told is so
(shop_truth.py).

A seed is one round of 1,000 orders, in which every service is away for long once. Three rounds of four run on
PostgreSQL, with two processes of orders and of payments on one server; the clock of one of these is ahead. The fourth
round runs on SQLite. What is found stays in a folder, with databases and logs.

Each round has faults that last longer than anything waits for. The time-outs are set so short that they all end within
LONGEST_S: the time to pay and the time past it for which an undecided payment keeps its order open, a payment's hold
and the time for which its charge may be late, 15 checks of a transaction, 16 deliveries of a message, and the time
after which services reconcile what nothing has moved.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import httpx
from shop_plan import (
    BROKER,
    GATEWAY,
    LONG_OUTAGES,
    ORDERS,
    PAYMENT_WINDOW_S,
    PAYMENTS,
    POSTGRESQL,
    SECOND_ORDERS,
    SECOND_PAYMENTS,
    Outage,
    RoundPlan,
    make_plan,
)
from shop_traders import Traders
from shop_truth import Truth, problems
from shop_victims import Faults, victims_of
from sweep import Outcome

from hourglass_local.books import Standing, read_books
from hourglass_local.cluster import SYNC_MASTER, Cluster
from hourglass_local.cluster_shop import ShopSettings
from hourglass_local.http_client import CONNECTIONS_MAX, ShopError
from hourglass_local.process import http_ready
from hourglass_local.shop import PaymentDesk, Shop
from hourglass_local.waiting import NotInTimeError, eventually
from mqclient import Admin
from mqclient.admin import TransactionPhase
from servicekit.http.client import PooledConnections

ROUND_ORDERS = 200
SWEEP_ORDERS, SWEEP_LONG_OUTAGES = 1_000, 5  # every service is away for long once
SQLITE_EVERY = 4
QUIET_MAX_S = 120.0  # docs/reference/faults.md#application
ANSWER_MAX_S = 180.0  # a buyer who has no answer for so long gives up
# Level 16 is the time to pay; a message that could not be handled comes back after level 3, 4, ..., here 1 s.
DELAY_LEVELS = f"{'1s ' * 15}{PAYMENT_WINDOW_S}s 1s 1s"
CHECK_INTERVAL_MS, CHECKS_MAX, CHECKED_FROM_MS = 500, 15, 1_000
BROKER_SETTINGS = {
    "transactionCheckInterval": str(CHECK_INTERVAL_MS),
    "transactionCheckMax": str(CHECKS_MAX),
    "transactionTimeOut": str(CHECKED_FROM_MS),
}
HOLD_MS, PAST_EXPIRY_MS, CHARGE_LATE_MS, RECONCILE_AFTER_MS = 13_000, 13_000, 10_000, 5_000
ENVIRONMENT = {
    "ORDERS_HOLD_MS": str(HOLD_MS),
    "ORDERS_HOLD_PAST_EXPIRY_MS": str(PAST_EXPIRY_MS),
    "PAYMENTS_CHARGE_LATE_MAX_MS": str(CHARGE_LATE_MS),
} | {
    f"{service}_RECONCILE_{name}": str(value)
    for service in ("ORDERS", "PAYMENTS")
    for name, value in (("INTERVAL_MS", 2_000), ("AFTER_MS", RECONCILE_AFTER_MS))
}
LONGEST_S = max(
    PAYMENT_WINDOW_S + PAST_EXPIRY_MS / 1000,
    (HOLD_MS + CHARGE_LATE_MS) / 1000,
    (CHECKED_FROM_MS + CHECKS_MAX * CHECK_INTERVAL_MS) / 1000,
    PAYMENT_WINDOW_S + 15,  # of 16 retries one waits for level 16, the others for 1 s each
    RECONCILE_AFTER_MS / 1000,
)
AHEAD_MS = 400_000  # the clock of the second process of orders
COMMIT_LOG_FILE_BYTES = 256 * 1024  # so that the log rolls over several times
GATEWAY_FAILURES = "declined=0.1,late=0.1:1500,duplicated=0.15,reordered=0.15,never=0.1"
SHOWN_MAX = 20

log = logging.getLogger(__name__)


def victims(*, postgresql: bool) -> list[str]:
    """Who is killed and paused in a round."""
    return [ORDERS, PAYMENTS, GATEWAY, BROKER, *([SECOND_ORDERS, SECOND_PAYMENTS, POSTGRESQL] if postgresql else [])]


def play(
    seed: int,
    orders: int = ROUND_ORDERS,
    *,
    postgresql: bool | None = None,
    outages: Sequence[Outage] = (),
    long_outages: int = LONG_OUTAGES,
) -> Outcome:
    """One round; `postgresql` says on which database, instead of the seed. So many services are away for long.

    With `outages` nothing else happens than these long ones, and the broker has a replica.
    """
    on_postgresql = seed % SQLITE_EVERY != 0 if postgresql is None else postgresql
    return run_round(lambda folder: Round(folder, seed, orders, on_postgresql, outages, long_outages))


def run_round(make: Callable[[Path], Round]) -> Outcome:
    """The round that is made for a folder, which stays if something is found."""
    folder = Path(tempfile.mkdtemp(prefix="hourglass-shop-"))
    a_round = make(folder)
    try:
        outcome = asyncio.run(a_round.run())
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        raise
    except Exception as error:  # a process that has died by itself, for one: what there is to see is in the folder
        log.exception("the round came to no end")
        outcome = Outcome(0, tuple(f"the round came to no end: {sentence}" for sentence in _sentences(error)))
    if not outcome.violations:
        shutil.rmtree(folder)
        return outcome
    kept = f"logs and databases are kept in {folder}"
    return Outcome(
        outcome.executed, (*(f"seed {a_round.seed}: {one}" for one in outcome.violations), kept), outcome.counts
    )


@dataclass
class Round:
    """One shop, from its start to its end. What else than faults can happen to it, is another `plan` and `faults`."""

    cluster_class: ClassVar[type[Cluster]] = Cluster
    clocks_ahead_ms: ClassVar[Mapping[str, int]] = {SECOND_ORDERS: AHEAD_MS}

    folder: Path
    seed: int
    orders: int
    postgresql: bool
    outages: Sequence[Outage] = ()
    long_outages: int = LONG_OUTAGES
    truth: Truth = field(default_factory=Truth)
    counts: Counter[str] = field(default_factory=Counter)

    async def run(self) -> Outcome:
        plan = self.plan()
        cluster = self.make_cluster(plan.gateway_seed)
        found: list[str] = []
        async with cluster, AsyncExitStack() as stack:
            orders_urls, payments_urls = cluster.shop.urls_of(ORDERS), cluster.shop.urls_of(PAYMENTS)
            badges, watched = cluster.badges, (self._watched(), self._watched())
            shop = Shop(orders_urls, badges, give_up_after_s=ANSWER_MAX_S, transport=watched[0])
            desk = PaymentDesk(payments_urls, badges, give_up_after_s=ANSWER_MAX_S, transport=watched[1])
            await stack.enter_async_context(shop)
            await stack.enter_async_context(desk)
            for product in plan.products:
                await shop.add_product(product)
            standing = Standing(cluster, await shop.products())
            faults = self.faults(cluster)
            begun = [asyncio.Event() for _ in plan.blows]
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(faults.strike(plan.blows, begun))
                    tasks.create_task(Traders(shop, desk, self.truth).trade(plan.purchases, begun))
            except* (ShopError, NotInTimeError) as group:
                found += _sentences(group)
            found += await self._quiet(cluster, standing, shop)
            books = await read_books(shop, desk)
            found += problems(self.truth, books)
            found += await _left_to_a_person(cluster)
            found += await _not_ready(cluster)
            self.counts.update(Counter(f"orders {order.status}" for order in books.orders.values()))
            self.counts.update(Counter(f"payments {payment.status}" for payment in books.payments.values()))
            for counts in (faults.counts, *(away.met(books) for away in faults.away)):
                self.counts.update(counts)
            stopped = await cluster.stop()
            if stopped.killed or stopped.failed or stopped.leftover:
                found.append(f"the processes did not stop well: {stopped}")
        self.counts.update({f"rejected: {problem}": count for problem, count in self.truth.rejections.items()})
        return Outcome(len(plan.purchases), tuple(found[:SHOWN_MAX]), dict(self.counts))

    def plan(self) -> RoundPlan:
        """Who buys what, and what happens meanwhile."""
        names = victims(postgresql=self.postgresql)
        return make_plan(self.seed, self.orders, names, self.outages, long_outages=self.long_outages)

    def faults(self, cluster: Cluster) -> Faults:
        """Who has that happen."""
        return Faults(victims_of(cluster), self.truth)

    def make_cluster(self, gateway_seed: int) -> Cluster:
        """Two instances of each service, where there is a server for their databases."""
        instances = 2 if self.postgresql else 1
        settings = ShopSettings(
            orders=instances,
            payments=instances,
            postgresql=self.postgresql,
            completion_after_ms=1_500,
            gateway_failures=GATEWAY_FAILURES,
            gateway_seed=gateway_seed,
            gateway_delay_ms=1_000,
            gateway_silence_ms=1_000,
            clocks_ahead_ms=dict(self.clocks_ahead_ms),
        )
        return self.cluster_class(
            self.folder,
            replicas_of=SYNC_MASTER if self.outages else None,
            delay_levels=DELAY_LEVELS,
            commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
            broker_settings=BROKER_SETTINGS,
            shop=settings,
            environment=ENVIRONMENT,
        )

    def _watched(self) -> _Watched:
        return _Watched(PooledConnections(CONNECTIONS_MAX), self.truth)

    async def _quiet(self, cluster: Cluster, standing: Standing, shop: Shop) -> list[str]:
        """What still moves, or is wrong, after QUIET_MAX_S."""
        begin_s = time.monotonic()

        async def settled() -> bool:
            cluster.check()
            return await standing.is_settled(shop, shipped_complete=True)

        try:
            await eventually(settled, QUIET_MAX_S, "quiet", interval_s=0.5)
        except NotInTimeError:
            statistics = await shop.statistics()
            violations = [str(violation) for violation in await standing.violations()]
            return [f"not quiet after {QUIET_MAX_S:g} s: {dict(statistics.orders)}", *violations]
        self.counts["seconds until quiet"] += round(time.monotonic() - begin_s)
        return []


class _Watched(httpx.AsyncBaseTransport):
    """Shows every answer to the truth."""

    def __init__(self, transport: httpx.AsyncBaseTransport, truth: Truth) -> None:
        self._transport = transport
        self._truth = truth

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._transport.handle_async_request(request)
        response.request = request
        await self._truth.see(response)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


async def _left_to_a_person(cluster: Cluster) -> list[str]:
    async with Admin(cluster.url) as admin:
        dead = [topic for topic in await admin.topic_list() if topic.startswith("%DLQ%")]
        parked = (await admin.list_transactions(phase=TransactionPhase.PARKED)).transactions
    return [f"there are dead letters: {topic}" for topic in dead] + [
        f"a transaction is parked: {one}" for one in parked
    ]


async def _not_ready(cluster: Cluster) -> list[str]:
    async with httpx.AsyncClient() as http:
        return [
            f"{name} is not ready"
            for name, url in cluster.shop.urls.items()
            if not await http_ready(http, f"{url}/health/ready")
        ]


def _sentences(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [sentence for one in error.exceptions for sentence in _sentences(one)]
    return [f"{type(error).__name__}: {error}"]


class ShopSweep:
    """The rounds of `make robustness`; a seed is one of them, and no clock ends it."""

    name, figure, unit, goal, share = "shop", "G10", "orders under faults", 10_000, 20

    def run(self, seed: int, deadline: float) -> Outcome:
        if time.monotonic() >= deadline:
            return Outcome(0)
        return play(seed, SWEEP_ORDERS, long_outages=SWEEP_LONG_OUTAGES)

"""Orders close by themselves although a process dies by SIGKILL while they wait (issue "From order to closing")."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from hourglass_local.books import is_closed_early
from hourglass_local.buyers import Buyers
from hourglass_local.cluster import QUICK_CHECKS, Cluster
from hourglass_local.plan import NOBODY_PAYS, make_plan
from hourglass_local.shop import CLOSED, PaymentDesk, Shop
from hourglass_local.waiting import eventually
from mqclient import Admin
from orders.domain.delay_levels import PAYMENT_WINDOW_LEVEL

ORDERS, BUYERS = 40, 8
# Level 16 is the time to pay; a message that could not be handled comes back after level 3, 4, ..., here 1 s.
DELAY_LEVELS = f"{'1s ' * 15}3s 1h 2h"
CLOSE_TIMEOUT_S = 30

pytestmark = pytest.mark.processes


class Scenario:
    """A running cluster, and what its buyers have done."""

    def __init__(self, cluster: Cluster, shop: Shop, desk: PaymentDesk, seed: int) -> None:
        self.cluster = cluster
        self.shop = shop
        self.plan = make_plan(ORDERS, BUYERS, seed, NOBODY_PAYS)
        self.buyers = Buyers(shop, desk, BUYERS)

    async def some_wait(self) -> None:
        """Return when timers wait in the broker."""
        async with Admin(self.cluster.url) as admin:

            async def waiting() -> bool:
                (status,) = await admin.broker_statuses()
                return status.delay_levels[PAYMENT_WINDOW_LEVEL - 1].waiting >= ORDERS // 4

            await eventually(waiting, 10, "timers in the broker")

    async def all_closed(self) -> bool:
        self.cluster.check()
        statistics = await self.shop.statistics()
        return statistics.orders[CLOSED] == ORDERS


@asynccontextmanager
async def scenario(folder: Path, seed: int) -> AsyncIterator[Scenario]:
    """Some orders wait and others are just being placed; at the end every promise is checked."""
    cluster = Cluster(folder, delay_levels=DELAY_LEVELS, broker_settings=QUICK_CHECKS)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cluster)
        shop = await stack.enter_async_context(Shop(cluster.orders_url, cluster.badges))
        desk = await stack.enter_async_context(PaymentDesk(cluster.payments_url, cluster.badges))
        running = Scenario(cluster, shop, desk, seed)
        for product in running.plan.products:
            await shop.add_product(product)
        before = await shop.products()
        half = ORDERS // 2
        async with running.buyers as buyers:
            await buyers.place(running.plan.orders[:half])
            await running.some_wait()
            placing = asyncio.create_task(buyers.place(running.plan.orders[half:]))
            await eventually(lambda: len(buyers.placed) > half, 10, "an order of the second half", interval_s=0.001)
            yield running
            await placing
        await eventually(running.all_closed, CLOSE_TIMEOUT_S, "every order closed", interval_s=0.1)
        orders = await shop.orders()
        assert orders.keys() == buyers.placed.keys()
        assert len(orders) == ORDERS
        assert [order for order in orders.values() if is_closed_early(order)] == []
        assert await shop.products() == before
        stopped = await cluster.stop()
        assert (stopped.killed, stopped.failed, stopped.leftover) == ((), (), ())


@pytest.mark.mechanism("X3")
async def test_orders_close_after_the_broker_was_killed(tmp_path: Path) -> None:
    async with scenario(tmp_path, seed=1) as running:
        (broker,) = running.cluster.brokers
        await broker.kill()
        await broker.start()


@pytest.mark.mechanism("U5")
async def test_orders_close_after_orders_was_killed(tmp_path: Path) -> None:
    async with scenario(tmp_path, seed=2) as running:
        await running.cluster.orders.kill()
        await running.cluster.orders.start()


async def test_orders_close_without_the_name_server(tmp_path: Path) -> None:
    async with scenario(tmp_path, seed=3) as running:
        (name_server,) = running.cluster.name_servers
        await name_server.kill()
        await eventually(running.all_closed, CLOSE_TIMEOUT_S, "every order closed", interval_s=0.1)
        await name_server.start()
        await running.cluster.wait_registered()

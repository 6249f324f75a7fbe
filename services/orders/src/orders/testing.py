"""Orders as tests want it: composed as in production, on a database of its own, with a clock that the test moves and a
queue that remembers.

`running_orders` gives the whole; `deliver` and `check_back` play the queue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from orders.app import MIGRATIONS
from orders.bootstrap import Application, bootstrap
from orders.config import Config
from orders.domain.order import Order, RequestedLine
from orders.domain.payment import Payment
from orders.domain.product import Product
from orders.service.accept_payment import PaymentOutcome
from orders.service.place_order import OrderRequest
from osenv import SeededRng, SimClock
from servicekit.adapters.database import Database
from servicekit.config import SQLITE_PREFIX
from servicekit.testing import RecordingPublisher, deliver

PRODUCT = Product("seat", "A seat", 15800, "CNY", available=10)


@dataclass(frozen=True, slots=True)
class RunningOrders:
    """One composed application and the hands on its outside."""

    application: Application
    database: Database
    publisher: RecordingPublisher
    clock: SimClock
    config: Config
    http: httpx.AsyncClient

    async def add_product(self, product: Product = PRODUCT) -> Product:
        return await self.application.use_cases.add_product(product)

    async def place(self, key: str, quantity: int = 1, product_id: str = PRODUCT.product_id) -> Order:
        request = OrderRequest("buyer-1", (RequestedLine(product_id, quantity),))
        return (await self.application.use_cases.place_order(request, key)).order

    async def product(self, product_id: str = PRODUCT.product_id) -> Product:
        return await self.application.use_cases.queries.product(product_id)

    async def order(self, order_id: str) -> Order:
        return await self.application.use_cases.queries.order(order_id)

    async def post_order(self, key: str | None, **changes: Any) -> httpx.Response:
        """POST /orders for one unit of PRODUCT; `changes` replace members of the payload."""
        payload = {"buyer_id": "buyer-1", "items": [{"product_id": PRODUCT.product_id, "quantity": 1}]} | changes
        return await self.http.post("/orders", json=payload, headers={} if key is None else {"Idempotency-Key": key})

    async def pay(self, order: Order, payment_id: str = "payment-1", **changes: Any) -> PaymentOutcome:
        """Let the order's payment arrive now; `changes` replace its members."""
        payment = Payment(payment_id, order.order_id, order.total_minor, order.currency, self.clock.wall_ms())
        return await self.application.accept_payment(replace(payment, **changes))

    async def check_back(self) -> None:
        """Let the queue ask about every open transaction."""
        await self.publisher.check_back(self.application.transactions.check)

    async def pass_payment_window(self) -> None:
        await self.clock.advance(self.config.payment_window_ms / 1000)

    async def deliver(self) -> int:
        """Hand every published message to the groups that read it, delays ignored; returns how many there were."""
        return await deliver(self.publisher.messages, self.application.subscriptions)


@asynccontextmanager
async def running_orders(
    folder: Path,
    *,
    seed: int = 1,
    payment_window_ms: int = 1_800_000,
    publisher: RecordingPublisher | None = None,
    clock: SimClock | None = None,
) -> AsyncIterator[RunningOrders]:
    """Orders on the database in `folder`, which is made and migrated when it is not there. No task runs by itself.

    A test that restarts orders hands queue and clock on.
    """
    config = Config(database_url=f"{SQLITE_PREFIX}{folder / 'orders.db'}", payment_window_ms=payment_window_ms)
    database = Database(config.database_url)
    publisher = publisher or RecordingPublisher()
    clock = clock or SimClock()
    try:
        await MIGRATIONS.upgrade(database)
        application = bootstrap(config, database, publisher, clock, SeededRng(seed), health_parts={})
        transport = httpx.ASGITransport(application.api, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://orders") as http:
            yield RunningOrders(application, database, publisher, clock, config, http)
    finally:
        await database.dispose()

"""Orders as tests want it: composed as in production, on a database of its own, with a clock that the test moves and a
publisher that remembers.

`running_orders` gives the whole; `deliver` plays the queue: it hands published messages to the groups that read them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from orders.adapters import migrate
from orders.adapters.database import Database
from orders.adapters.recording_publisher import RecordingPublisher
from orders.bootstrap import Application, bootstrap
from orders.config import SQLITE_PREFIX, Config
from orders.domain.order import Order, RequestedLine
from orders.domain.product import Product
from orders.service.place_order import OrderRequest
from osenv import SeededRng, SimClock

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

    async def empty_outbox(self) -> None:
        """Publish everything that was committed."""
        while await self.application.relay.publish_batch():
            pass

    async def pass_payment_window(self) -> None:
        await self.clock.advance(self.config.payment_window_ms / 1000)

    async def deliver(self) -> int:
        """Hand every published message to the groups that read it, delays ignored; returns how many there were."""
        messages, self.publisher.messages[:] = self.publisher.messages[:], []
        for message in messages:
            for subscription in self.application.subscriptions:
                if subscription.topic == message.topic and subscription.tags in {"*", message.tag}:
                    await subscription.handle(message.body)
        return len(messages)


@asynccontextmanager
async def running_orders(
    folder: Path, *, seed: int = 1, payment_window_ms: int = 1_800_000
) -> AsyncIterator[RunningOrders]:
    """Orders on the database in `folder`, which is made and migrated when it is not there. No task runs by itself."""
    config = Config(database_url=f"{SQLITE_PREFIX}{folder / 'orders.db'}", payment_window_ms=payment_window_ms)
    database = Database(config.database_url)
    publisher = RecordingPublisher()
    clock = SimClock()
    try:
        await migrate.upgrade(database)
        application = bootstrap(config, database, publisher, clock, SeededRng(seed), health_parts={})
        transport = httpx.ASGITransport(application.api, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://orders") as http:
            yield RunningOrders(application, database, publisher, clock, config, http)
    finally:
        await database.dispose()


async def until(is_met: Callable[[], bool]) -> None:
    """Let other tasks run until the condition is met; the test's own timeout ends it otherwise."""
    while not is_met():  # noqa: ASYNC110 - any condition, whoever brings it about
        await asyncio.sleep(0)

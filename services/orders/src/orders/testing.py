"""Orders as tests want it: composed as in production, on a database of its own, with a clock that the test moves and a
queue that remembers.

    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("key")

`deliver` and `check_back` play the queue; `headers` and `caller` play people.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from orders.app import MIGRATIONS
from orders.bootstrap import Application, bootstrap
from orders.config import Config
from orders.domain.order import Order, Payment, RequestedLine, StatusChange
from orders.domain.product import Product
from orders.pages.testing import ScriptedDeadLetters, ScriptedDesk
from orders.service.accept_payment import PaymentOutcome
from orders.service.payment_desk import PaymentDesk
from orders.service.place_order import OrderRequest
from osenv import Clock, SeededRng, SimClock
from servicekit.auth import ROLES, Caller
from servicekit.sql.database import Database
from servicekit.sql.schema import Migrations
from servicekit.testing import RecordingPublisher, deliver
from servicekit.testing.migrations import migrate

PRODUCT = Product("seat", "A seat", 15800, "CNY", available=10)
AUTH_KEYS = (("test", "a secret that is known to tests only"),)


def caller(role: str, subject: str) -> Caller:
    """Somebody with all scopes of a role: buyer, seller or operator."""
    return Caller(subject, ROLES[role])


BUYER = caller("buyer", "buyer-1")
SELLER = caller("seller", "seller-1")


@dataclass(frozen=True, slots=True)
class RunningOrders:
    """One composed application and the hands on its outside."""

    application: Application
    database: Database
    publisher: RecordingPublisher
    clock: SimClock
    config: Config
    http: httpx.AsyncClient
    desk: ScriptedDesk
    dead_letters: ScriptedDeadLetters

    async def add_product(self, product: Product = PRODUCT) -> Product:
        return await self.application.use_cases.add_product(product)

    async def place(
        self, key: str, quantity: int = 1, product_id: str = PRODUCT.product_id, buyer_id: str = BUYER.subject
    ) -> Order:
        request = OrderRequest(buyer_id, (RequestedLine(product_id, quantity),))
        return (await self.application.use_cases.place_order(request, key)).order

    async def product(self, product_id: str = PRODUCT.product_id) -> Product:
        return await self.application.use_cases.queries.product(product_id)

    async def order(self, order_id: str) -> Order:
        """The order, as somebody who sees all of them sees it."""
        return await self.application.use_cases.queries.order(order_id, SELLER)

    async def history(self, order_id: str) -> list[StatusChange]:
        return await self.application.use_cases.queries.history(order_id, SELLER)

    def headers(self, role: str = "buyer", subject: str = BUYER.subject) -> dict[str, str]:
        """The Authorization header of somebody with this role."""
        return {"Authorization": f"Bearer {self.application.tokens.issue(subject, ROLES[role])}"}

    async def post_order(
        self, key: str | None, subject: str = BUYER.subject, role: str = "buyer", **changes: Any
    ) -> httpx.Response:
        """POST /orders for one unit of PRODUCT; `changes` replace members of the payload."""
        payload = {"items": [{"product_id": PRODUCT.product_id, "quantity": 1}]} | changes
        headers = self.headers(role, subject) | ({} if key is None else {"Idempotency-Key": key})
        return await self.http.post("/orders", json=payload, headers=headers)

    async def pay(self, order: Order, payment_id: str = "payment-1", **changes: Any) -> PaymentOutcome:
        """Let the order's payment arrive now; `changes` replace its members."""
        payment = Payment(payment_id, order.order_id, order.total_minor, order.currency, self.clock.wall_ms())
        return await self.application.accept_payment(replace(payment, **changes))

    async def cancel(self, order_id: str, who: Caller = BUYER, version: int | None = None) -> Order:
        return await self.application.use_cases.close_order.cancel(order_id, who, version)

    async def pay_and_ship(self, order: Order, payment_id: str = "payment-1") -> Order:
        """The order after its payment has arrived and its seller has shipped it, both now."""
        await self.pay(order, payment_id)
        return await self.application.use_cases.ship_order(order.order_id, SELLER)

    async def check_back(self) -> None:
        """Let the queue ask about every open transaction."""
        await self.publisher.check_back(self.application.transactions.check)

    async def pass_payment_window(self) -> None:
        await self.clock.advance(self.config.payment_window_ms / 1000)

    async def pass_completion_window(self) -> None:
        await self.clock.advance(self.config.completion_after_ms / 1000)

    async def deliver(self) -> int:
        """Hand every published message to the groups that read it, delays ignored; returns how many there were."""
        return await deliver(self.publisher.messages, self.application.subscriptions)


@asynccontextmanager
async def running_orders(
    database_url: str,
    *,
    seed: int = 1,
    publisher: RecordingPublisher | None = None,
    clock: SimClock | None = None,
    payment_desk: PaymentDesk | None = None,
    service_clock: Clock | None = None,
    migrations: Migrations = MIGRATIONS,
    **settings: Any,
) -> AsyncIterator[RunningOrders]:
    """Orders on this database, which is migrated by `migrations`. No task runs by itself; `settings` are fields
    of Config.

    A test that restarts orders hands queue and clock on; one with real payments brings `payment_desk`.
    `service_clock` is what orders goes by, if not by `clock`.
    """
    config = Config(**{"database_url": database_url, "auth_keys": AUTH_KEYS, "rate_limit": None} | settings)
    database = Database(config.database_url)
    publisher = publisher or RecordingPublisher()
    clock = clock or SimClock()
    try:
        await migrate(database, config.database_url, migrations)
        desk, dead_letters = ScriptedDesk(clock), ScriptedDeadLetters()
        application = bootstrap(
            config,
            database,
            publisher,
            service_clock or clock,
            SeededRng(seed),
            payment_desk=payment_desk or desk,
            dead_letters=dead_letters,
            parked=publisher,
            health_parts={},
        )
        transport = httpx.ASGITransport(application.api, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://orders") as http:
            yield RunningOrders(application, database, publisher, clock, config, http, desk, dead_letters)
    finally:
        await database.dispose()

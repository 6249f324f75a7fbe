"""Orders as tests want it: composed as in production, on a database of its own, with a clock that the test moves and a
queue that remembers.

    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("key")

`deliver` and `check_back` play the queue; `headers` and `caller` play people.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, NoReturn

import httpx

from orders.app import MIGRATIONS
from orders.bootstrap import Application, bootstrap
from orders.config import Config
from orders.domain.errors import (
    ProductExistsError,
    RefundRequestedError,
    StatusChangedError,
    UnknownOrderError,
    UnknownProductError,
)
from orders.domain.order import (
    RESERVATION,
    Order,
    OrderLine,
    OrderStatus,
    Payment,
    PaymentHold,
    RefundRequest,
    RequestedLine,
    StatusChange,
    UnitMove,
)
from orders.domain.product import Product
from orders.pages.testing import ScriptedDeadLetters, ScriptedDesk
from orders.service.payments import PaymentDesk, PaymentOutcome
from orders.service.place_order import OrderRequest
from orders.service.use_case import OrderFilter, PageKey, StockSums
from osenv import Clock, SeededRng, SimClock
from servicekit.auth import ROLES, Caller
from servicekit.errors import RequestInFlightError, TransactionGivenUpError
from servicekit.sql.database import Database
from servicekit.sql.schema import Migrations
from servicekit.sql.units import KeyClaim, LocalOutcome
from servicekit.testing import RecordingPublisher, deliver
from servicekit.testing.migrations import migrate


@dataclass(slots=True)
class MemoryState:
    """Every table by its key; the values are immutable."""

    products: dict[str, Product] = field(default_factory=dict)
    orders: dict[str, Order] = field(default_factory=dict)
    history: dict[str, tuple[StatusChange, ...]] = field(default_factory=dict)
    refunds: dict[str, RefundRequest] = field(default_factory=dict)
    keys: dict[tuple[str, str], KeyClaim] = field(default_factory=dict)
    transactions: set[str] = field(default_factory=set)
    inbox: set[tuple[str, str]] = field(default_factory=set)

    def copy(self) -> MemoryState:
        """A state that is equal now, and independent of this one."""
        return MemoryState(*(getattr(self, table.name).copy() for table in fields(self)))


class MemoryUnits:
    """Implements `Units` in memory, for tests that run use cases many thousand times; `state` is what is committed.

    A unit works on a copy of the state, which `commit` puts in its place; nothing here waits, so
    that a unit is one step: units never overlap, as if a database ran them one after the other. Lists, sums and checks
    are left out: what the tests of interleavings need is here, and a test holds that on SQL they come to the same ends.
    """

    def __init__(self) -> None:
        self.state = MemoryState()

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[MemoryUnitOfWork]:
        yield MemoryUnitOfWork(self)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[MemoryUnitOfWork]:
        yield MemoryUnitOfWork(self)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[MemoryUnitOfWork]:
        yield MemoryUnitOfWork(self)


class MemoryUnitOfWork:
    """Implements `UnitOfWork`."""

    def __init__(self, units: MemoryUnits) -> None:
        self._units = units
        self._state = units.state.copy()
        self.products = MemoryProducts(self._state)
        self.orders = MemoryOrders(self._state)
        self.refunds = MemoryRefunds(self._state)
        self.keys = MemoryKeys(self._state.keys)
        self.transactions = MemoryTransactions(self._state)
        self.inbox = MemoryInbox(self._state)

    async def commit(self) -> None:
        self._units.state = self._state.copy()


class MemoryProducts:
    """Implements `Products`."""

    def __init__(self, state: MemoryState) -> None:
        self._products = state.products

    async def add(self, product: Product) -> None:
        if product.product_id in self._products:
            raise ProductExistsError(product.product_id)
        self._products[product.product_id] = product

    async def find(self, product_ids: Collection[str]) -> dict[str, Product]:
        return {product_id: self._products[product_id] for product_id in product_ids if product_id in self._products}

    async def page(self, after: str | None, limit: int, *, is_on_sale: bool | None = None) -> list[Product]:
        _left_out()

    async def get_locked(self, product_id: str) -> Product:
        if product_id not in self._products:
            raise UnknownProductError(product_id)
        return self._products[product_id]

    async def change(self, product: Product) -> None:
        self._products[product.product_id] = product

    async def stock_sums(self) -> StockSums:
        _left_out()


class MemoryOrders:
    """Implements `Orders`."""

    def __init__(self, state: MemoryState) -> None:
        self._orders = state.orders
        self._history = state.history
        self._keys = MemoryKeys(state.keys)
        self._products = state.products

    async def before_placing(
        self, buyer_id: str, key: str, product_ids: Collection[str]
    ) -> tuple[KeyClaim | None, dict[str, Product]]:
        found = {product_id: self._products[product_id] for product_id in product_ids if product_id in self._products}
        return await self._keys.find(buyer_id, key), found

    async def place(self, order: Order, first: StatusChange, claim: KeyClaim) -> Collection[str]:
        await self._keys.claim(claim, order.created_at_ms)
        self._orders[order.order_id] = order
        self._history[order.order_id] = (first,)
        return [line.product_id for line in order.lines if not self._reserve(line)]

    async def get(self, order_id: str) -> Order:
        if order_id not in self._orders:
            raise UnknownOrderError(order_id)
        return self._orders[order_id]

    async def page(self, wanted: OrderFilter, after: PageKey | None, limit: int) -> list[Order]:
        _left_out()

    async def change_status(self, order: Order, change: StatusChange) -> None:
        found = self._orders[order.order_id]
        if (found.status, found.version, found.hold) != (change.old_status, order.version - 1, order.hold):
            raise StatusChangedError(order.order_id)
        self._orders[order.order_id] = order
        self._history[order.order_id] += (change,)
        if change.unit_move is not None:
            for line in order.lines:
                self._move(change.unit_move, line)

    async def set_hold(self, order: Order, hold: PaymentHold | None) -> None:
        if self._orders[order.order_id] != order:
            raise StatusChangedError(order.order_id)
        self._orders[order.order_id] = replace(order, hold=hold)

    async def history(self, order_id: str) -> list[StatusChange]:
        return list(self._history.get(order_id, ()))

    async def count_by_status(self) -> dict[OrderStatus, int]:
        _left_out()

    async def count_paid(self) -> int:
        _left_out()

    def _reserve(self, line: OrderLine) -> bool:
        found = self._products[line.product_id]
        is_as_read = found.is_on_sale and found.price_minor == line.unit_price_minor
        if found.available < line.quantity or not is_as_read:
            return False
        self._move(RESERVATION, line)
        return True

    def _move(self, move: UnitMove, line: OrderLine) -> None:
        found = self._products[line.product_id]
        source, target = getattr(found, move.source), getattr(found, move.target)
        moved: dict[str, Any] = {move.source: source - line.quantity, move.target: target + line.quantity}
        self._products[line.product_id] = replace(found, **moved)


class MemoryRefunds:
    """Implements `Refunds`."""

    def __init__(self, state: MemoryState) -> None:
        self._refunds = state.refunds

    async def is_requested(self, payment_id: str) -> bool:
        return payment_id in self._refunds

    async def request(self, refund: RefundRequest, at_ms: int) -> None:
        if refund.payment.payment_id in self._refunds:
            raise RefundRequestedError(refund.payment.payment_id)
        self._refunds[refund.payment.payment_id] = refund

    async def count(self) -> int:
        return len(self._refunds)


class MemoryKeys:
    """Implements `IdempotencyKeys`."""

    def __init__(self, keys: dict[tuple[str, str], KeyClaim]) -> None:
        self._keys = keys

    async def find(self, subject: str, key: str) -> KeyClaim | None:
        return self._keys.get((subject, key))

    async def claim(self, claim: KeyClaim, at_ms: int) -> None:
        if (claim.subject, claim.key) in self._keys:
            raise RequestInFlightError(claim.key)
        self._keys[claim.subject, claim.key] = claim


class MemoryTransactions:
    """Implements `TransactionRows`."""

    def __init__(self, state: MemoryState) -> None:
        self._rows = state.transactions
        self._begun: Sequence[str] = ()

    def begin(self, transaction_ids: Sequence[str], at_ms: int) -> None:
        self._begun = transaction_ids

    async def record(self) -> None:
        for transaction_id in self._begun:
            if transaction_id in self._rows:
                raise TransactionGivenUpError(transaction_id)
            self._rows.add(transaction_id)

    async def answer_check(self, transaction_id: str, at_ms: int) -> LocalOutcome:
        _left_out()


class MemoryInbox:
    """Implements `Inbox`."""

    def __init__(self, state: MemoryState) -> None:
        self._consumed = state.inbox

    async def once(self, consumer_group: str, business_key: str, at_ms: int) -> bool:
        if (consumer_group, business_key) in self._consumed:
            return False
        self._consumed.add((consumer_group, business_key))
        return True


def _left_out() -> NoReturn:
    raise NotImplementedError("lists, sums and checks are for a real database")


PRODUCT = Product("seat", "A seat", 15800, "CNY", available=10)
AUTH_KEYS = (("test", "a secret that is known to tests only"),)


def caller(role: str, subject: str) -> Caller:
    """A caller with all scopes of a role: buyer, seller or operator."""
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
        """The order, as a caller that may see all of them sees it."""
        return await self.application.use_cases.queries.order(order_id, SELLER)

    async def history(self, order_id: str) -> list[StatusChange]:
        return await self.application.use_cases.queries.history(order_id, SELLER)

    def headers(self, role: str = "buyer", subject: str = BUYER.subject) -> dict[str, str]:
        """The Authorization header of a caller with this role."""
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

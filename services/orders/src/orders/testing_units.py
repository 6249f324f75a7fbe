"""The database of orders in memory: units of work for tests that run use cases many thousand times.

Implements `Units`. A unit works on a copy of the state, which `commit` puts in its place; nothing here waits, so that
a unit is one step: units never overlap, as if a database ran them one after the other. Lists, sums and check-backs are
left out: what the tests of interleavings need is here, and a test holds that on SQL they come to the same ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import NoReturn

from orders.domain.errors import (
    ProductExistsError,
    RefundRequestedError,
    StatusChangedError,
    UnknownOrderError,
    UnknownProductError,
)
from orders.domain.order import Order, OrderStatus, PaymentHold, RefundRequest, StatusChange
from orders.domain.product import Product
from orders.service.unit_of_work import OrderFilter, PageKey, StockSums
from servicekit.errors import RequestInFlightError, TransactionGivenUpError
from servicekit.sql.units import KeyClaim, LocalOutcome


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
    """Implements `Units`; `state` is what is committed."""

    def __init__(self) -> None:
        self.state = MemoryState()

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[MemoryUnitOfWork]:
        yield MemoryUnitOfWork(self)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[MemoryUnitOfWork]:
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
    """Implements `Products`; that stock is never negative, a product holds itself."""

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

    async def reserve(self, product_id: str, quantity: int, price_minor: int) -> bool:
        found = self._products[product_id]
        if found.available < quantity or not found.is_on_sale or found.price_minor != price_minor:
            return False
        self._move(product_id, available=-quantity, reserved=quantity)
        return True

    async def release(self, product_id: str, quantity: int) -> None:
        self._move(product_id, reserved=-quantity, available=quantity)

    async def sell(self, product_id: str, quantity: int) -> None:
        self._move(product_id, reserved=-quantity, sold=quantity)

    async def take_back(self, product_id: str, quantity: int) -> None:
        self._move(product_id, sold=-quantity, available=quantity)

    async def stock_sums(self) -> StockSums:
        _left_out()

    def _move(self, product_id: str, *, available: int = 0, reserved: int = 0, sold: int = 0) -> None:
        found = self._products[product_id]
        self._products[product_id] = replace(
            found,
            available=found.available + available,
            reserved=found.reserved + reserved,
            sold=found.sold + sold,
        )


class MemoryOrders:
    """Implements `Orders`."""

    def __init__(self, state: MemoryState) -> None:
        self._orders = state.orders
        self._history = state.history
        self._keys = state.keys

    async def add(self, order: Order, first: StatusChange, claim: KeyClaim) -> None:
        await MemoryKeys(self._keys).claim(claim, order.created_at_ms)
        self._orders[order.order_id] = order
        self._history[order.order_id] = (first,)

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

    async def record(self, transaction_id: str, at_ms: int) -> None:
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
    raise NotImplementedError("lists, sums and check-backs are for a real database")

"""The port to the database: a unit of work that is committed as a whole or not at all.

Invariants: a unit that ends without `commit` changes nothing; status and stock change by compare-and-set, so that of
two units that want the same change exactly one gets it; no network call is made inside a unit of work.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from orders.domain.order import Order, OrderStatus, PaymentHold, RefundRequest, StatusChange
from orders.domain.product import Product
from servicekit.sql.units import IdempotencyKeys, Inbox, KeyClaim, TransactionRows


@dataclass(frozen=True, slots=True)
class PageKey:
    """The place of an order in a list: lists run from the newest to the oldest, by creation time, then by id."""

    created_at_ms: int
    order_id: str


@dataclass(frozen=True, slots=True)
class OrderFilter:
    """Which orders a list holds; None is any. `created_from_ms` is in the list, `created_before_ms` is not."""

    buyer_id: str | None = None
    status: OrderStatus | None = None
    created_from_ms: int | None = None
    created_before_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StockSums:
    """Units over all products."""

    available: int
    reserved: int
    sold: int


class Products(Protocol):
    """The products and their stock."""

    async def add(self, product: Product) -> None:
        """Raises ProductExistsError."""

    async def find(self, product_ids: Collection[str]) -> dict[str, Product]:
        """Those of the products that exist, by id."""

    async def page(self, after: str | None, limit: int, *, is_on_sale: bool | None = None) -> list[Product]:
        """At most `limit` products by ascending id, from behind `after`; those that are on sale, or are not, or all."""

    async def get_locked(self, product_id: str) -> Product:
        """The product, which nobody else changes until this unit ends. Raises UnknownProductError."""

    async def change(self, product: Product) -> None:
        """Write what a seller changes of a product that this unit has locked."""

    async def reserve(self, product_id: str, quantity: int, price_minor: int) -> bool:
        """Move units from available to reserved.

        False, and nothing changed, if fewer are available, or the product is not on sale at this price any more.
        """

    async def release(self, product_id: str, quantity: int) -> None:
        """Move units from reserved back to available."""

    async def sell(self, product_id: str, quantity: int) -> None:
        """Move units from reserved to sold."""

    async def take_back(self, product_id: str, quantity: int) -> None:
        """Move units from sold back to available."""

    async def stock_sums(self) -> StockSums:
        """The sums over all products."""


class Orders(Protocol):
    """The orders with their lines and their history."""

    async def add(self, order: Order, first: StatusChange, claim: KeyClaim) -> None:
        """Write a new order, the first row of its history, and the claim of the key that makes it.

        Raises RequestInFlightError when another process claims the key at the same moment.
        """

    async def get(self, order_id: str) -> Order:
        """Raises UnknownOrderError."""

    async def page(self, wanted: OrderFilter, after: PageKey | None, limit: int) -> list[Order]:
        """At most `limit` orders, newest first, from behind `after`."""

    async def change_status(self, order: Order, change: StatusChange) -> None:
        """Write `order` as it is after `change`, and a history row, by compare-and-set on status, version and hold.

        Raises StatusChangedError, and nothing is changed, if the order is not as it was before `change` any more.
        """

    async def set_hold(self, order: Order, hold: PaymentHold | None) -> None:
        """Let `hold` take the place of the hold that `order` was read with, by the same compare-and-set.

        Raises StatusChangedError, and nothing is changed, if the order is not as it was read any more.
        """

    async def history(self, order_id: str) -> list[StatusChange]:
        """The order's changes, oldest first; none for an unknown order."""

    async def count_by_status(self) -> dict[OrderStatus, int]:
        """How many orders stand where; every status is named."""

    async def count_paid(self) -> int:
        """How many orders were paid, wherever they stand now."""


class Refunds(Protocol):
    """The refunds that were requested."""

    async def is_requested(self, payment_id: str) -> bool:
        """Whether this payment's money is on its way back."""

    async def request(self, refund: RefundRequest, at_ms: int) -> None:
        """Raises RefundRequestedError when it was requested before."""

    async def count(self) -> int:
        """How many were requested."""


class UnitOfWork(Protocol):
    """One database transaction."""

    @property
    def products(self) -> Products: ...

    @property
    def orders(self) -> Orders: ...

    @property
    def keys(self) -> IdempotencyKeys: ...

    @property
    def refunds(self) -> Refunds: ...

    @property
    def transactions(self) -> TransactionRows: ...

    @property
    def inbox(self) -> Inbox: ...

    async def commit(self) -> None:
        """Make the unit's changes durable; without it they are rolled back."""


class Units(Protocol):
    """Opens units of work. They raise StorageUnavailableError when the database does not answer."""

    def looking(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that only reads, a little cheaper, for what is decided again by who writes.

        Each of its questions may see another state of the database.
        """

    def reading(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that only reads, and sees one state of the database."""

    def writing(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that may write."""

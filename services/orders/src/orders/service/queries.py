"""Queries, and the commands that change products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from orders.domain.errors import UnknownProductError
from orders.domain.order import Order, OrderStatus, StatusChange
from orders.domain.product import Product, ProductChange
from orders.service import events
from orders.service.use_case import OrderFilter, PageKey, StockSums, Units, find_visible
from servicekit.auth import Caller
from servicekit.identifiers import cursor_number, decode_cursor, encode_cursor


class AddProduct:
    """The use case behind POST /products."""

    def __init__(self, units: Units) -> None:
        self._units = units

    async def __call__(self, product: Product) -> Product:
        """Put the product on sale. Raises ProductExistsError."""
        async with self._units.writing() as unit:
            await unit.products.add(product)
            await unit.commit()
        return product


class ChangeProduct:
    """The use case behind PATCH /products/{product_id}."""

    def __init__(self, units: Units) -> None:
        self._units = units

    async def __call__(self, product_id: str, wanted: ProductChange) -> Product:
        """The product as the seller wants it, which it may have been before.

        Raises UnknownProductError, ProductChangedError, UnitsInOrdersError.
        """
        async with self._units.writing() as unit:
            found = await unit.products.get_locked(product_id)
            changed = found.changed(wanted)
            if changed is not found:
                await unit.products.change(changed)
                await unit.commit()
        return changed


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list; `next_cursor` leads to the next part and is None on the last."""

    items: list[T]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """Where all orders, all units and all payments are; every status is named."""

    orders: dict[OrderStatus, int]
    stock: StockSums
    paid_orders: int
    refund_requests: int


class Queries:
    """The questions behind the GET routes.

    An order comes in one piece, a list too; what is looked up beside it never changes. The sums of the statistics are
    of one moment.
    """

    def __init__(self, units: Units) -> None:
        self._units = units

    async def product(self, product_id: str) -> Product:
        """Raises UnknownProductError."""
        async with self._units.autocommit() as unit:
            found = await unit.products.find([product_id])
        if product_id not in found:
            raise UnknownProductError(product_id)
        return found[product_id]

    async def products(self, limit: int, cursor: str | None, *, is_on_sale: bool | None = None) -> Page[Product]:
        """Products by id: those that are on sale, or are not, or all. Raises InvalidCursorError."""
        after = None if cursor is None else decode_cursor(cursor, 1)[0]
        async with self._units.autocommit() as unit:
            found = await unit.products.page(after, limit + 1, is_on_sale=is_on_sale)
        items = found[:limit]
        return Page(items, encode_cursor(items[-1].product_id) if len(found) > limit else None)

    async def order(self, order_id: str, caller: Caller) -> Order:
        """Raises UnknownOrderError, also for an order that the caller may not see."""
        async with self._units.autocommit() as unit:
            return await find_visible(unit.orders, order_id, caller)

    async def orders(self, wanted: OrderFilter, limit: int, cursor: str | None) -> Page[Order]:
        """Orders, newest first; `wanted` limits the list to the orders that the caller may see. Raises
        InvalidCursorError."""
        after = None if cursor is None else _page_key(cursor)
        async with self._units.autocommit() as unit:
            found = await unit.orders.page(wanted, after, limit + 1)
        items = found[:limit]
        if len(found) <= limit:
            return Page(items, None)
        return Page(items, encode_cursor(str(items[-1].created_at_ms), items[-1].order_id))

    async def history(self, order_id: str, caller: Caller) -> list[StatusChange]:
        """The order's changes, oldest first. Raises UnknownOrderError, also for one that the caller may not see."""
        async with self._units.autocommit() as unit:
            await find_visible(unit.orders, order_id, caller)
            return await unit.orders.history(order_id)

    async def orders_by_status(self) -> dict[OrderStatus, int]:
        """How many orders stand where; every status is named."""
        async with self._units.autocommit() as unit:
            return await unit.orders.count_by_status()

    async def statistics(self) -> Statistics:
        """Counts and sums of one moment."""
        async with self._units.snapshot() as unit:
            counts = await unit.orders.count_by_status()
            stock = await unit.products.stock_sums()
            paid = await unit.orders.count_paid()
            refunds = await unit.refunds.count()
        return Statistics(counts, stock, paid, refunds)


def _page_key(cursor: str) -> PageKey:
    created_at_ms, order_id = decode_cursor(cursor, 2)
    return PageKey(cursor_number(created_at_ms, cursor), order_id)


# The groups of this service and of payments: the shop's money and stock hang on them. Those of payments stand here as
# the text that they are on the queue, because services know each other's messages and not each other's code.
SHOP_GROUPS = (
    events.TIMEOUT_SCHEDULER_GROUP,
    events.TIMEOUT_HANDLER_GROUP,
    events.PAYMENT_HANDLER_GROUP,
    events.REFUND_HANDLER_GROUP,
    events.COMPLETION_SCHEDULER_GROUP,
    events.COMPLETION_HANDLER_GROUP,
    "payable-orders",
    "refund-handler",
)


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """An open dead letter; `keys` are ids of orders."""

    group: str
    letter_id: str
    topic: str
    tag: str
    keys: tuple[str, ...]
    body: str
    dead_since_ms: int


@dataclass(frozen=True, slots=True)
class DeadLettersOfGroup:
    """The oldest open letters of one consumer group; `has_more` when there are more than a page shows."""

    group: str
    letters: tuple[DeadLetterView, ...]
    has_more: bool


class DeadLetters(Protocol):
    """The port to the shop's dead letters: messages that a group could not carry out.

    Each is an incident, and nothing is lost: an operator mends the cause and has the letter delivered again. Both
    methods raise QueueUnreachableError.
    """

    async def open_letters(self) -> tuple[DeadLettersOfGroup, ...]:
        """Of each group of the shop, in a fixed order."""

    async def replay(self, group: str, letter_id: str) -> None:
        """Deliver the letter to its group again. Raises UnknownDeadLetterError if it is not open."""

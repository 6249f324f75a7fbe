"""The base of all use cases: units of work, access to an order, the trace of an order, its meter.

Invariants: a unit that ends without `commit` changes nothing; status and stock change by compare-and-set, so that of
two units that want the same change exactly one gets it; no network call is made inside a unit of work. An order that
the caller may not see is answered like one that does not exist, so that its existence stays hidden. Whatever happens to
an order belongs to the trace in which it was placed, whichever request asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from opentelemetry import trace

import telemetry
from orders.domain.errors import UnknownOrderError, VersionMismatchError
from orders.domain.order import Order, OrderStatus, Origin, PaymentHold, RefundRequest, StatusChange
from orders.domain.product import Product
from osenv import Clock
from servicekit.auth import ORDERS_ALL, Caller
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

    @property
    def total(self) -> int:
        return self.available + self.reserved + self.sold


class Products(Protocol):
    """The products and their stock."""

    async def add(self, product: Product) -> None:
        """Raises ProductExistsError."""

    async def find(self, product_ids: Collection[str]) -> dict[str, Product]:
        """Those of the products that exist, by id."""

    async def page(self, after: str | None, limit: int, *, is_on_sale: bool | None = None) -> list[Product]:
        """At most `limit` products by ascending id, from behind `after`; those that are on sale, or are not, or all."""

    async def get_locked(self, product_id: str) -> Product:
        """The product, which no other unit changes until this unit ends. Raises UnknownProductError."""

    async def change(self, product: Product) -> None:
        """Write what a seller changes of a product that this unit has locked."""

    async def stock_sums(self) -> StockSums:
        """The sums over all products."""


class Orders(Protocol):
    """The orders with their lines and their history."""

    async def before_placing(
        self, buyer_id: str, key: str, product_ids: Collection[str]
    ) -> tuple[KeyClaim | None, dict[str, Product]]:
        """The buyer's earlier use of the key, if there was one, and those of the products that exist, by id."""

    async def place(self, order: Order, first: StatusChange, claim: KeyClaim) -> Collection[str]:
        """Write a new order, the first row of its history, the claim of the key that makes it, and reserve its units.

        Returns the products that have fewer units available, or are not on sale at the order's price any more: if there
        are any, the unit is not to be committed. Raises TransactionGivenUpError, and RequestInFlightError when another
        process claims the key at the same moment.
        """

    async def get(self, order_id: str) -> Order:
        """Raises UnknownOrderError."""

    async def page(self, wanted: OrderFilter, after: PageKey | None, limit: int) -> list[Order]:
        """At most `limit` orders, newest first, from behind `after`."""

    async def change_status(self, order: Order, change: StatusChange) -> None:
        """Write `order` as it is after `change`, and a history row, by compare-and-set on status, version and hold; its
        units move as `change` says.

        Raises TransactionGivenUpError, and StatusChangedError if the order is not as it was before `change` any more;
        then nothing is changed.
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

    def autocommit(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that only reads, a little cheaper, for reads whose decision is checked again on write.

        Each of its questions may see another state of the database.
        """

    def snapshot(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that only reads, and sees one state of the database."""

    def writing(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that may write."""


async def find_visible(orders: Orders, order_id: str, caller: Caller) -> Order:
    """The order, for its buyer and for callers that may see all orders. Raises UnknownOrderError."""
    order = await orders.get(order_id)
    if order.buyer_id != caller.subject and not caller.has(ORDERS_ALL):
        raise UnknownOrderError(order_id)
    return order


def require_buyer(order: Order, caller: Caller) -> None:
    """Raises UnknownOrderError unless the caller is the order's buyer: only the buyer does what is the buyer's."""
    if order.buyer_id != caller.subject:
        raise UnknownOrderError(order.order_id)


def require_version(order: Order, version: int | None) -> None:
    """Raises VersionMismatchError when a version is asked for and the order is in another."""
    if version is not None and order.version != version:
        raise VersionMismatchError(order.order_id, version)


def origin_of(actor: str, clock: Clock, order: Order | None = None) -> Origin:
    """A change by `actor`, now, in the trace of `order`; of an order without one, in the trace that is going on."""
    trace_id = None if order is None else trace_id_of(order)
    return Origin(actor, clock.wall_ms(), trace_id or telemetry.current_trace_id())


def trace_id_of(order: Order) -> str | None:
    """The order's trace as 32 hex digits."""
    return None if order.traceparent is None else order.traceparent.split("-")[1]


def annotate_span(order: Order) -> None:
    """Put the order's id on the current span, so that its trace is found by it."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attribute(telemetry.names.ORDER_ID, order.order_id)


@contextmanager
def in_trace_of(order: Order, what: str) -> Iterator[None]:
    """What is done inside is the span `what` in the order's trace; of an order without one, in the current trace.

    A request to change an order has a trace of its own, its caller's. What the request does to the order is a span in
    the order's trace, linked with the request's; so the messages that tell of the change are in the order's trace too,
    and with them everything that consumers do.
    """
    with telemetry.joined_span(what, order.traceparent, attributes={telemetry.names.ORDER_ID: order.order_id}):
        yield


class OrderMeter(Protocol):
    """Told once for each change that this process has made, after it was committed."""

    def changed(self, order: Order, change: StatusChange) -> None:
        """`order` is as it is after the change."""


class NotMetered:
    """Implements `OrderMeter`: counts nothing."""

    def changed(self, order: Order, change: StatusChange) -> None:
        """Forget it."""


NOT_METERED = NotMetered()

"""What the services answer about orders, stock and money, and whether that agrees once nothing moves any more.

What has to be so: every order is paid or closed, and none expired before its time; every unit is sold by a paid order
or on sale again; the gateway keeps exactly what the paid orders cost, without what was given back of it, and payments
says so too. What lies behind these answers, in the databases, is for the standing invariants (tools/invariants).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from hourglass_invariants.checking import CheckResult, Sources, Violation, run_checks
from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import GATEWAY, ORDERS, PAYMENTS
from hourglass_local.shop import (
    PENDING,
    REFUNDED,
    SHIPPED,
    Order,
    Payment,
    PaymentDesk,
    PaymentStatistics,
    Product,
    Refund,
    Shop,
)

NAMED_MAX = 3  # so many ids in a sentence


@dataclass(frozen=True, slots=True)
class Books:
    """Orders, products, payments and refunds by id, and the sums that payments and the gateway make by themselves."""

    orders: Mapping[str, Order]
    products: Mapping[str, Product]
    payments: Mapping[str, Payment]
    refunds: Mapping[str, Refund]
    payment_statistics: PaymentStatistics

    def refunded_minor(self, payment_id: str) -> int:
        """How much of a payment has gone back."""
        return sum(
            refund.amount_minor
            for refund in self.refunds.values()
            if refund.payment_id == payment_id and refund.status == REFUNDED
        )


async def read_books(shop: Shop, desk: PaymentDesk) -> Books:
    """Everything, which makes sense when nothing moves. Raises ShopError."""
    return Books(
        orders=await shop.orders(),
        products=await shop.products(),
        payments=await desk.payments(),
        refunds=await desk.refunds(),
        payment_statistics=await desk.statistics(),
    )


def order_problems(books: Books, cancelled: Collection[str]) -> list[str]:
    """What is wrong with the ends of the orders; `cancelled` are the ids of those that were cancelled."""
    orders = books.orders.values()
    found = []
    if pending := [order.order_id for order in orders if order.status == PENDING]:
        found.append(f"{len(pending)} of {len(orders)} orders are still pending long after their expiry")
    if early := [order.order_id for order in orders if is_closed_early(order) and order.order_id not in cancelled]:
        found.append(f"{len(early)} orders were closed before their expiry: {some(early)}")
    if lost := [order_id for order_id in cancelled if order_id not in books.orders or books.orders[order_id].is_paid]:
        found.append(f"{len(lost)} orders were cancelled and are not closed: {some(lost)}")
    return found


def is_closed_early(order: Order) -> bool:
    return order.closed_at_ms is not None and order.closed_at_ms < order.expires_at_ms


def stock_problems(before: Mapping[str, Product], books: Books) -> list[str]:
    """Product by product, because sums can agree by accident: units that are not where they have to be."""
    sold = Counter[str]()
    for order in books.orders.values():
        if order.is_paid:
            sold.update(order.items)
    found = []
    for product_id in sorted(before.keys() | books.products.keys()):
        product = books.products.get(product_id)
        wanted_sold = sold[product_id]
        wanted = (before[product_id].units - wanted_sold, 0, wanted_sold) if product_id in before else None
        actual = None if product is None else (product.available, product.reserved, product.sold)
        if wanted != actual:
            found.append(
                f"the stock of {product_id} does not add up: (on sale, reserved, sold) has to be {wanted}"
                f" and is {actual}"
            )
    return found


def kept_minor(books: Books) -> int:
    """What the shop keeps: the totals of the paid orders, without what was given back of them."""
    paid = [order for order in books.orders.values() if order.is_paid]
    return sum(order.total_minor - books.refunded_minor(order.payment_id or "") for order in paid)


def money_problems(books: Books) -> list[str]:
    """What is wrong with the money, as sentences."""
    database, gateway = books.payment_statistics, books.payment_statistics.gateway
    wanted = kept_minor(books)
    found = []
    for book, kept in (
        ("gateway", gateway.captured_minor - gateway.refunded_minor),
        ("database of payments", database.captured_minor - database.refunded_minor),
    ):
        if kept != wanted:
            found.append(f"the {book} keeps {kept} and the paid orders come to {wanted}")
    if (database.captured_minor, database.refunded_minor) != (gateway.captured_minor, gateway.refunded_minor):
        found.append(
            f"captured and refunded are {gateway.captured_minor} and {gateway.refunded_minor} at the gateway and"
            f" {database.captured_minor} and {database.refunded_minor} in the database of payments"
        )
    captures = sum(payment.took_money for payment in books.payments.values())
    refunds = sum(refund.status == REFUNDED for refund in books.refunds.values())
    if (captures, refunds) != (gateway.captures, gateway.refunds):
        found.append(
            f"the gateway counts {gateway.captures} captures and {gateway.refunds} refunds, payments {captures} and"
            f" {refunds}"
        )
    return found


def some(ids: Iterable[str]) -> str:
    """The first of them, for a sentence."""
    named = sorted(ids)
    return ", ".join(named[:NAMED_MAX]) + (", ..." if len(named) > NAMED_MAX else "")


@dataclass(frozen=True, slots=True)
class Databases:
    """Of a shop that is no cluster of ours: the URL of each service's, and when a shipped order completes by itself."""

    urls: Mapping[str, str]
    completion_after_ms: int


class Standing:
    """`before` are the products before anything was ordered: their units are the constant of the stock."""

    def __init__(self, shop: Cluster | Databases, before: Mapping[str, Product]) -> None:
        if isinstance(shop, Cluster):
            shop = Databases(shop.shop.database_urls, shop.shop.settings.completion_after_ms)
        self._sources = Sources(shop.urls[ORDERS], shop.urls[PAYMENTS], shop.urls[GATEWAY])
        self._completion_after_ms = shop.completion_after_ms
        self._stock = {product_id: product.units for product_id, product in before.items()}

    async def results(self) -> list[CheckResult]:
        """Every check, with everything finished by now. Raises InvariantsError."""
        return await run_checks(
            self._sources,
            int(time.time() * 1000),
            grace_ms=0,
            completion_after_ms=self._completion_after_ms,
            stock=self._stock,
        )

    async def violations(self) -> list[Violation]:
        """Everything that does not hold, or is not finished. Raises InvariantsError."""
        return [violation for result in await self.results() for violation in result.violations]

    async def is_settled(self, shop: Shop, *, shipped_complete: bool) -> bool:
        """Whether nothing moves any more: no order waits, unless for its shipment, and every invariant holds.

        With `shipped_complete` shipped orders are waited for, too. Raises InvariantsError, ShopError.
        """
        orders = (await shop.statistics()).orders
        if orders.get(PENDING, 0) or (shipped_complete and orders.get(SHIPPED, 0)):
            return False
        return not await self.violations()

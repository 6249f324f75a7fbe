"""The books of the shop, of payments and of the gateway, and whether they agree once nothing moves any more.

What has to be so: every order is paid or closed, and none was closed before its expiry; every unit is sold by a paid
order or on sale again; the gateway holds exactly the totals of the paid orders, and the database of payments says so
too; a payment whose money was taken has paid its order, or was refunded once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hourglass_local.payment_desk import CAPTURED, CREATED, REFUNDED, Payment, PaymentDesk, PaymentStatistics
from hourglass_local.shop import PENDING, Order, OrderStatistics, Product, Shop

NAMED_MAX = 3  # so many ids in a sentence


@dataclass(frozen=True, slots=True)
class Books:
    """Orders, products and payments by id, and the sums that each service makes of them by itself."""

    orders: Mapping[str, Order]
    products: Mapping[str, Product]
    order_statistics: OrderStatistics
    payments: Mapping[str, Payment]
    payment_statistics: PaymentStatistics


async def read_books(shop: Shop, desk: PaymentDesk) -> Books:
    """Everything, which makes sense when nothing moves. Raises ShopError."""
    return Books(
        orders=await shop.orders(),
        products=await shop.products(),
        order_statistics=await shop.statistics(),
        payments=await desk.payments(),
        payment_statistics=await desk.statistics(),
    )


def is_settled(orders: OrderStatistics, payments: PaymentStatistics) -> bool:
    """Whether nothing moves any more; `orders` was read first, and no new payment is on its way."""
    return (
        orders.orders[PENDING] == 0
        and payments.payments[CREATED] == 0
        and payments.payments[CAPTURED] == orders.paid_orders
        and payments.payments[REFUNDED] == orders.refund_requests
    )


def order_problems(books: Books) -> list[str]:
    """What is wrong with the ends of the orders, as sentences."""
    orders = books.orders.values()
    found = []
    if pending := [order.order_id for order in orders if order.status == PENDING]:
        found.append(f"{len(pending)} of {len(orders)} orders are still pending long after their expiry")
    if early := [order.order_id for order in orders if is_closed_early(order)]:
        found.append(f"{len(early)} orders were closed before their expiry: {some(early)}")
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


def money_problems(books: Books) -> list[str]:
    """What is wrong with the money, as sentences."""
    return [*_sum_problems(books), *_payment_problems(books)]


def _sum_problems(books: Books) -> list[str]:
    """The three books against each other."""
    paid_minor = sum(order.total_minor for order in books.orders.values() if order.is_paid)
    database, gateway = books.payment_statistics, books.payment_statistics.gateway
    payments = Counter(payment.status for payment in books.payments.values())
    counts = {
        "gateway": (gateway.captures - gateway.refunds, gateway.refunds),
        "payments": (payments[CAPTURED], payments[REFUNDED]),
        "orders": (books.order_statistics.paid_orders, books.order_statistics.refund_requests),
    }
    found = []
    for book, kept_minor in (
        ("gateway", gateway.captured_minor - gateway.refunded_minor),
        ("database of payments", database.captured_minor - database.refunded_minor),
    ):
        if kept_minor != paid_minor:
            found.append(f"the {book} keeps {kept_minor} and the paid orders cost {paid_minor}")
    if (database.captured_minor, database.refunded_minor) != (gateway.captured_minor, gateway.refunded_minor):
        found.append(
            f"captured and refunded are {gateway.captured_minor} and {gateway.refunded_minor} at the gateway and"
            f" {database.captured_minor} and {database.refunded_minor} in the database of payments"
        )
    if len(set(counts.values())) > 1:
        found.append(f"the books count different payments; (kept, refunded) is {counts}")
    return found


def _payment_problems(books: Books) -> list[str]:
    """Every payment against its order, and every paid order against its payment."""
    undecided, strays, both, wrong = [], [], [], []
    for payment in books.payments.values():
        order = books.orders.get(payment.order_id)
        has_paid = order is not None and order.payment_id == payment.payment_id
        if payment.status == CREATED:
            undecided.append(payment.payment_id)
        elif payment.status == CAPTURED and not has_paid:
            strays.append(payment.payment_id)
        elif payment.status == REFUNDED and has_paid:
            both.append(payment.payment_id)
        if order is not None and payment.amount_minor != order.total_minor:
            wrong.append(payment.payment_id)
    unpaid = [
        order.order_id
        for order in books.orders.values()
        if order.is_paid and (order.payment_id is None or order.payment_id not in books.payments)
    ]
    sentences = {
        "payments are neither captured nor declined": undecided,
        "captured payments have paid no order and were not refunded": strays,
        "refunded payments have paid their order all the same": both,
        "payments are of another amount than their order": wrong,
        "paid orders name a payment that is not there": unpaid,
    }
    return [f"{len(ids)} {sentence}: {some(ids)}" for sentence, ids in sentences.items() if ids]


def some(ids: Iterable[str]) -> str:
    """The first of them, for a sentence."""
    named = sorted(ids)
    return ", ".join(named[:NAMED_MAX]) + (", ..." if len(named) > NAMED_MAX else "")

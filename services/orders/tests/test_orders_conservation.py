"""Random operations, many at once: stock, orders, history and messages add up whatever the order of events."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from orders.adapters.tables import counters, metadata
from orders.domain.order import PAID_STATUSES, Order, OrderStatus, RequestedLine
from orders.domain.product import Product
from orders.service.place_order import OrderRequest
from orders.service.use_case import OrderFilter
from orders.testing import BUYER, SELLER, RunningOrders, running_orders
from servicekit.errors import ServiceError
from servicekit.testing.databases import NewDatabaseUrl

PRODUCTS = ("a", "b", "c")
STOCK = 6

lines = st.lists(
    st.tuples(st.sampled_from(PRODUCTS), st.integers(1, 3)), min_size=1, max_size=3, unique_by=lambda line: line[0]
)
changes = st.sampled_from(("cancel", "seller-cancel", "expire", "ship", "confirm", "complete"))
operation = st.one_of(
    st.tuples(st.just("place"), st.integers(0, 9), lines),
    st.tuples(st.just("pay"), st.integers(0, 29), st.none()),
    st.tuples(changes, st.integers(0, 9), st.none()),
    st.tuples(st.just("pass time"), st.just(0), st.none()),
)
# The operations of one inner list run at once.
rounds = st.lists(st.lists(operation, min_size=1, max_size=6), min_size=1, max_size=6)
Operation = tuple[str, int, list[tuple[str, int]] | None]


async def run_one(orders: RunningOrders, placed: list[str], one: Operation) -> None:
    kind, number, wanted = one
    if kind == "pass time":
        await orders.pass_payment_window()
        await orders.pass_completion_window()
    elif wanted is not None:
        request = OrderRequest(BUYER.subject, tuple(RequestedLine(*line) for line in wanted))
        result = await orders.application.use_cases.place_order(request, f"key-{number}")
        if not result.replayed:
            placed.append(result.order.order_id)
    elif placed and kind == "pay":  # by one of three payments, of which the last has the wrong amount
        payment, order_id = number % 3, placed[number // 3 % len(placed)]
        order = await orders.order(order_id)
        await orders.pay(order, f"{order_id}-{payment}", amount_minor=order.total_minor - payment // 2)
    elif placed:
        await change(orders, kind, placed[number % len(placed)])


async def change(orders: RunningOrders, kind: str, order_id: str) -> None:
    use_cases = orders.application.use_cases
    if kind == "cancel":
        await orders.cancel(order_id, BUYER)
    elif kind == "seller-cancel":
        await orders.cancel(order_id, SELLER)
    elif kind == "expire":
        await use_cases.close_order.expire(order_id)
    elif kind == "ship":
        await use_cases.ship_order(order_id, SELLER)
    elif kind == "confirm":
        await use_cases.confirm_receipt(order_id, BUYER)
    else:
        await orders.application.complete_order.fire(order_id)


async def check_everything_adds_up(orders: RunningOrders, placed: list[str]) -> None:
    queries = orders.application.use_cases.queries
    found = (await queries.orders(OrderFilter(), 200, None)).items
    assert sorted(order.order_id for order in found) == sorted(placed)
    reserved: Counter[str] = Counter()
    sold: Counter[str] = Counter()
    for order in found:
        history = await orders.history(order.order_id)
        assert [change.new_status for change in history][-1] is order.status
        assert len(history) == order.version
        if order.status is OrderStatus.PENDING_PAYMENT:
            reserved.update({line.product_id: line.quantity for line in order.lines})
        elif order.status in PAID_STATUSES:
            sold.update({line.product_id: line.quantity for line in order.lines})
    for product in (await queries.products(10, None)).items:
        assert (product.reserved, product.sold) == (reserved[product.product_id], sold[product.product_id])
        assert product.available + product.reserved + product.sold == STOCK
    check_everything_is_told(orders, found, placed)
    statistics = await queries.statistics()
    assert {status: count for status, count in statistics.orders.items() if count} == Counter(o.status for o in found)
    assert statistics.paid_orders == sum(order.payment_id is not None for order in found)
    assert statistics.refund_requests == len(orders.publisher.taken("order-events", "refund-requested"))


def check_everything_is_told(orders: RunningOrders, found: list[Order], placed: list[str]) -> None:
    assert orders.publisher.halves == {}
    told = Counter((message.tag, message.key) for message in orders.publisher.messages if message.tag != "complete")
    refunds = [json.loads(message.body) for message in orders.publisher.taken("order-events", "refund-requested")]
    expected = Counter(("created", order_id) for order_id in placed)
    expected.update(("refund-requested", refund["order_id"]) for refund in refunds)
    expected.update(("closed", order.order_id) for order in found if order.status is OrderStatus.CLOSED)
    expected.update(("paid", order.order_id) for order in found if order.payment_id is not None)
    expected.update(("shipped", order.order_id) for order in found if order.shipped_at_ms is not None)
    expected.update(("completed", order.order_id) for order in found if order.status is OrderStatus.COMPLETED)
    assert told == expected
    # A payment pays for an order that is kept, or goes back, and goes back once.
    refunded = {refund["payment_id"] for refund in refunds}
    assert len(refunded) == len(refunds)
    assert refunded.isdisjoint(order.payment_id for order in found if order.status is not OrderStatus.CLOSED)
    assert refunded.issuperset(
        order.payment_id for order in found if order.status is OrderStatus.CLOSED and order.payment_id
    )


async def forget_everything(orders: RunningOrders) -> None:
    async with orders.database.writing() as connection:
        for table in reversed(metadata.sorted_tables):
            if table is not counters.table:  # its triggers empty it
                await connection.execute(delete(table))
        await connection.commit()


async def play(database_url: str, script: list[list[Operation]]) -> None:
    async with running_orders(database_url) as orders:
        await forget_everything(orders)
        for name in PRODUCTS:
            await orders.add_product(Product(name, name, 100, "CNY", available=STOCK))
        placed: list[str] = []
        for at_once in script:
            results = await asyncio.gather(*(run_one(orders, placed, one) for one in at_once), return_exceptions=True)
            unexpected = [result for result in results if result is not None and not isinstance(result, ServiceError)]
            assert unexpected == []
        await check_everything_adds_up(orders, placed)


@pytest.mark.mechanism("X1")
def test_stock_orders_history_and_messages_add_up(new_database_url: NewDatabaseUrl) -> None:
    url = new_database_url("orders")

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(rounds)
    def each(script: list[list[Operation]]) -> None:
        asyncio.run(play(url, script))

    each()

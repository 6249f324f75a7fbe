"""Random operations, many at once: stock, orders, history and messages add up whatever the order of events."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orders.domain.order import Order, RequestedLine
from orders.domain.order_status import OrderStatus
from orders.domain.product import Product
from orders.service.place_order import OrderRequest
from orders.service.unit_of_work import OrderFilter
from orders.testing import RunningOrders, running_orders
from servicekit.errors import ServiceError

PRODUCTS = ("a", "b", "c")
STOCK = 6

lines = st.lists(
    st.tuples(st.sampled_from(PRODUCTS), st.integers(1, 3)), min_size=1, max_size=3, unique_by=lambda line: line[0]
)
operation = st.one_of(
    st.tuples(st.just("place"), st.integers(0, 9), lines),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.none()),
    st.tuples(st.just("expire"), st.integers(0, 9), st.none()),
    st.tuples(st.just("pay"), st.integers(0, 29), st.none()),
    st.tuples(st.just("pass time"), st.just(0), st.none()),
)
# The operations of one inner list run at once.
rounds = st.lists(st.lists(operation, min_size=1, max_size=6), min_size=1, max_size=6)
Operation = tuple[str, int, list[tuple[str, int]] | None]


async def run_one(orders: RunningOrders, placed: list[str], one: Operation) -> None:
    kind, number, wanted = one
    use_cases = orders.application.use_cases
    if kind == "pass time":
        await orders.pass_payment_window()
    elif wanted is not None:
        request = OrderRequest("buyer", tuple(RequestedLine(*line) for line in wanted))
        result = await use_cases.place_order(request, f"key-{number}")
        if not result.replayed:
            placed.append(result.order.order_id)
    elif placed and kind == "pay":  # by one of three payments, of which the last has the wrong amount
        payment, order_id = number % 3, placed[number // 3 % len(placed)]
        order = await orders.order(order_id)
        await orders.pay(order, f"{order_id}-{payment}", amount_minor=order.total_minor - payment // 2)
    elif placed:
        order_id = placed[number % len(placed)]
        await (use_cases.close_order.cancel(order_id) if kind == "cancel" else use_cases.close_order.expire(order_id))


async def check_everything_adds_up(orders: RunningOrders, placed: list[str]) -> None:
    queries = orders.application.use_cases.queries
    found = (await queries.orders(OrderFilter(), 200, None)).items
    assert sorted(order.order_id for order in found) == sorted(placed)
    reserved: Counter[str] = Counter()
    sold: Counter[str] = Counter()
    for order in found:
        history = await queries.history(order.order_id)
        assert [change.new_status for change in history][-1] is order.status
        assert len(history) == (1 if order.status is OrderStatus.PENDING_PAYMENT else 2)
        if order.status is OrderStatus.PENDING_PAYMENT:
            reserved.update({line.product_id: line.quantity for line in order.lines})
        elif order.status is OrderStatus.AWAITING_SHIPMENT:
            sold.update({line.product_id: line.quantity for line in order.lines})
    for product in (await queries.products(10, None)).items:
        assert (product.reserved, product.sold) == (reserved[product.product_id], sold[product.product_id])
        assert product.available + product.reserved + product.sold == STOCK
    check_everything_is_told(orders, found, placed)


def check_everything_is_told(orders: RunningOrders, found: list[Order], placed: list[str]) -> None:
    assert orders.publisher.halves == {}
    told = Counter((message.tag, message.key) for message in orders.publisher.messages)
    refunds = [json.loads(message.body) for message in orders.publisher.taken("order-events", "refund-requested")]
    expected = Counter(("created", order_id) for order_id in placed)
    expected.update(("refund-requested", refund["order_id"]) for refund in refunds)
    expected.update(("closed", order.order_id) for order in found if order.status is OrderStatus.CLOSED)
    expected.update(("paid", order.order_id) for order in found if order.status is OrderStatus.AWAITING_SHIPMENT)
    assert told == expected
    # A payment pays or goes back, and goes back once.
    assert len({refund["payment_id"] for refund in refunds}) == len(refunds)
    assert {refund["payment_id"] for refund in refunds}.isdisjoint(order.payment_id for order in found)


async def play(folder: Path, script: list[list[Operation]]) -> None:
    async with running_orders(folder) as orders:
        for name in PRODUCTS:
            await orders.add_product(Product(name, name, 100, "CNY", available=STOCK))
        placed: list[str] = []
        for at_once in script:
            results = await asyncio.gather(*(run_one(orders, placed, one) for one in at_once), return_exceptions=True)
            unexpected = [result for result in results if result is not None and not isinstance(result, ServiceError)]
            assert unexpected == []
        await check_everything_adds_up(orders, placed)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rounds)
def test_stock_orders_history_and_messages_add_up(script: list[list[Operation]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), script))

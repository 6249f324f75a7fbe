"""Random operations, many at once: stock, orders, history and messages add up whatever the order of events."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orders.domain.errors import OrdersError
from orders.domain.order import RequestedLine
from orders.domain.order_status import OrderStatus
from orders.domain.product import Product
from orders.service.place_order import OrderRequest
from orders.service.unit_of_work import OrderFilter
from orders.testing import RunningOrders, running_orders

PRODUCTS = ("a", "b", "c")
STOCK = 6

lines = st.lists(
    st.tuples(st.sampled_from(PRODUCTS), st.integers(1, 3)), min_size=1, max_size=3, unique_by=lambda line: line[0]
)
operation = st.one_of(
    st.tuples(st.just("place"), st.integers(0, 9), lines),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.none()),
    st.tuples(st.just("expire"), st.integers(0, 9), st.none()),
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
    elif placed:
        order_id = placed[number % len(placed)]
        await (use_cases.close_order.cancel(order_id) if kind == "cancel" else use_cases.close_order.expire(order_id))


async def check_everything_adds_up(orders: RunningOrders, placed: list[str]) -> None:
    queries = orders.application.use_cases.queries
    found = (await queries.orders(OrderFilter(), 200, None)).items
    assert sorted(order.order_id for order in found) == sorted(placed)
    reserved: Counter[str] = Counter()
    for order in found:
        history = await queries.history(order.order_id)
        assert [change.new_status for change in history][-1] is order.status
        assert len(history) == (2 if order.status is OrderStatus.CLOSED else 1)
        if order.status is OrderStatus.PENDING_PAYMENT:
            reserved.update({line.product_id: line.quantity for line in order.lines})
    for product in (await queries.products(10, None)).items:
        assert product.reserved == reserved[product.product_id]
        assert product.available + product.reserved + product.sold == STOCK
    await orders.empty_outbox()
    told = Counter((message.tag, message.key) for message in orders.publisher.messages)
    assert told == Counter(("created", order_id) for order_id in placed) + Counter(
        ("closed", order.order_id) for order in found if order.status is OrderStatus.CLOSED
    )


async def play(folder: Path, script: list[list[Operation]]) -> None:
    async with running_orders(folder) as orders:
        for name in PRODUCTS:
            await orders.add_product(Product(name, name, 100, "CNY", available=STOCK))
        placed: list[str] = []
        for at_once in script:
            results = await asyncio.gather(*(run_one(orders, placed, one) for one in at_once), return_exceptions=True)
            unexpected = [result for result in results if result is not None and not isinstance(result, OrdersError)]
            assert unexpected == []
        await check_everything_adds_up(orders, placed)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rounds)
def test_stock_orders_history_and_messages_add_up(script: list[list[Operation]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), script))

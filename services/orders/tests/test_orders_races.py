"""The same races as in test_orders_interleavings.py, with tasks that really run at once against a database."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from orders.domain.errors import IllegalTransitionError, InsufficientStockError, StatusChangedError
from orders.domain.order import Order, OrderStatus
from orders.domain.product import Product
from orders.service.close_order import ExpiryOutcome
from orders.service.payments import PaymentOutcome
from orders.service.status_commands import CompletionOutcome
from orders.testing import BUYER, SELLER, RunningOrders, running_orders
from servicekit.errors import RequestInFlightError
from servicekit.testing.databases import NewDatabaseUrl

ORDERS = 12

Contender = Callable[[RunningOrders, Order], Awaitable[object]]

CONTENDERS: dict[str, Contender] = {
    "cancel": lambda orders, order: orders.cancel(order.order_id, BUYER),
    "expire": lambda orders, order: orders.application.use_cases.close_order.expire(order.order_id),
    "pay": lambda orders, order: orders.pay(order, f"{order.order_id}-1"),
    "pay again": lambda orders, order: orders.pay(order, f"{order.order_id}-1"),
    "pay twice": lambda orders, order: orders.pay(order, f"{order.order_id}-2"),
    "seller-cancel": lambda orders, order: orders.cancel(order.order_id, SELLER),
    "ship": lambda orders, order: orders.application.use_cases.ship_order(order.order_id, SELLER),
}


def is_expected(result: object) -> bool:
    """A win, or the right answer to the loser."""
    return isinstance(result, Order | PaymentOutcome | ExpiryOutcome | StatusChangedError | IllegalTransitionError)


@pytest.mark.mechanism("X1")
@pytest.mark.parametrize("names", [("cancel", "expire", "pay", "seller-cancel", "ship"), tuple(CONTENDERS)], ids=len)
async def test_of_tasks_that_run_at_once_one_wins_each_state(
    new_database_url: NewDatabaseUrl, names: tuple[str, ...]
) -> None:
    """All contenders of all orders at once, so that the orders also meet at the rows of their one product."""
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product(Product("seat", "A seat", 100, "CNY", available=10 * ORDERS))
        placed = [await orders.place(f"k{number}", quantity=2) for number in range(ORDERS)]
        await orders.pass_payment_window()
        contenders = []
        for number, order in enumerate(placed):
            turn = number % len(names)  # who comes first is another one each time
            contenders += [CONTENDERS[name](orders, order) for name in (*names[turn:], *names[:turn])]
        results = await asyncio.gather(*contenders, return_exceptions=True)
        assert [result for result in results if not is_expected(result)] == []
        payments = {name for name in names if name.startswith("pay")}
        for order in placed:
            await check_order(orders, order, len(payments - {"pay again"}))
        await check_stock(orders, 10 * ORDERS)
        assert orders.publisher.halves == {}


async def check_order(orders: RunningOrders, order: Order, payments: int) -> None:
    final = await orders.order(order.order_id)
    history = await orders.history(order.order_id)
    assert len(history) == final.version == len({change.old_status for change in history})
    assert history[-1].new_status is final.status
    assert final.status is not OrderStatus.PENDING_PAYMENT
    told = [message for message in orders.publisher.messages if message.key == order.order_id]
    tags = Counter(message.tag for message in told)
    assert tags["closed"] == (final.status is OrderStatus.CLOSED)
    assert tags["paid"] == (final.payment_id is not None)
    assert tags["shipped"] == (final.shipped_at_ms is not None)
    refunded = [json.loads(message.body)["payment_id"] for message in told if message.tag == "refund-requested"]
    everything = {f"{order.order_id}-{number}" for number in range(1, payments + 1)}
    kept = set() if final.status is OrderStatus.CLOSED else {final.payment_id}
    assert sorted(refunded) == sorted(everything - kept)


async def check_stock(orders: RunningOrders, total: int) -> None:
    product = await orders.product()
    sold = 0
    for message in orders.publisher.taken("order-events", "created"):
        if (await orders.order(message.key)).status in {OrderStatus.AWAITING_SHIPMENT, OrderStatus.SHIPPED}:
            sold += 2
    assert (product.available, product.reserved, product.sold) == (total - sold, 0, sold)


async def test_confirming_and_completing_at_once_have_one_winner(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        placed = [await orders.place(f"k{number}") for number in range(6)]
        for order in placed:
            await orders.pay_and_ship(order, f"payment of {order.order_id}")
        await orders.pass_completion_window()
        confirm, fire = orders.application.use_cases.confirm_receipt, orders.application.complete_order.fire
        for order in placed:
            results = await asyncio.gather(
                fire(order.order_id), confirm(order.order_id, BUYER), fire(order.order_id), return_exceptions=True
            )
            won = [result for result in results if isinstance(result, Order) or result is CompletionOutcome.COMPLETED]
            assert len(won) == 1, results
            assert len(await orders.history(order.order_id)) == 4
        assert len(orders.publisher.taken("order-events", "completed")) == len(placed)


@pytest.mark.mechanism("U10")
async def test_the_last_units_go_to_no_more_buyers_than_there_are(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        for name in ("a", "b"):
            await orders.add_product(Product(name, name, 1, "CNY", available=5))
        results = await asyncio.gather(
            *(orders.place(f"k{number}", product_id="ab"[number % 2]) for number in range(40)), return_exceptions=True
        )
        assert Counter(type(result) for result in results) == {Order: 10, InsufficientStockError: 30}
        for name in ("a", "b"):
            product = await orders.product(name)
            assert (product.available, product.reserved) == (0, 5)


@pytest.mark.mechanism("U4")
async def test_two_processes_with_one_key_make_one_order(new_database_url: NewDatabaseUrl) -> None:
    """Two processes do not know of each other's requests in flight: the database decides."""
    url = new_database_url("orders")
    async with running_orders(url) as one, running_orders(url, seed=2) as other:
        await one.add_product()
        for number in range(8):
            results = await asyncio.gather(one.place(f"k{number}"), other.place(f"k{number}"), return_exceptions=True)
            made = {result.order_id for result in results if isinstance(result, Order)}
            assert len(made) == 1, results
            assert all(isinstance(result, Order | RequestInFlightError) for result in results)
            assert (await other.place(f"k{number}")).order_id in made
        assert ((await one.product()).available, (await one.product()).reserved) == (2, 8)

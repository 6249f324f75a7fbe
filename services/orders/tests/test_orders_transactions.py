"""Placing, closing and paying as transactional messages: what is left when the process dies in between."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import text

from orders.domain.order import Order, OrderStatus
from orders.service.use_case import OrderFilter
from orders.testing import BUYER, SELLER, RunningOrders, running_orders
from servicekit.errors import PublishError, TransactionGivenUpError
from servicekit.testing import ProcessDeathError, RecordingPublisher, die
from servicekit.testing.databases import NewDatabaseUrl

Action = Callable[[RunningOrders, Order], Awaitable[object]]


async def cancel(orders: RunningOrders, order: Order) -> object:
    return await orders.cancel(order.order_id)


async def expire(orders: RunningOrders, order: Order) -> object:
    orders.clock.set_wall_ms(order.expires_at_ms)
    return await orders.application.use_cases.close_order.expire(order.order_id)


async def pay(orders: RunningOrders, order: Order) -> object:
    return await orders.pay(order)


async def pay_too_little(orders: RunningOrders, order: Order) -> object:
    return await orders.pay(order, amount_minor=1)


async def cancel_as_seller(orders: RunningOrders, order: Order) -> object:
    return await orders.cancel(order.order_id, SELLER)


async def ship(orders: RunningOrders, order: Order) -> object:
    return await orders.application.use_cases.ship_order(order.order_id, SELLER)


async def confirm(orders: RunningOrders, order: Order) -> object:
    return await orders.application.use_cases.confirm_receipt(order.order_id, BUYER)


async def complete(orders: RunningOrders, order: Order) -> object:
    await orders.pass_completion_window()
    return await orders.application.complete_order.fire(order.order_id)


ACTIONS = pytest.mark.parametrize(
    ("action", "tags", "status"),
    [
        (cancel, ["closed"], OrderStatus.CLOSED),
        (expire, ["closed"], OrderStatus.CLOSED),
        (pay, ["paid"], OrderStatus.AWAITING_SHIPMENT),
        (pay_too_little, ["refund-requested"], OrderStatus.PENDING_PAYMENT),
        (cancel_as_seller, ["closed", "refund-requested"], OrderStatus.CLOSED),
        (ship, ["shipped"], OrderStatus.SHIPPED),
        (confirm, ["completed"], OrderStatus.COMPLETED),
        (complete, ["completed"], OrderStatus.COMPLETED),
    ],
)


async def order_for(orders: RunningOrders, action: Action) -> Order:
    """An order that the action can change; what was told of it is forgotten."""
    await orders.add_product()
    order = await orders.place("k")
    if action in {cancel_as_seller, ship, confirm, complete}:
        await orders.pay(order)
    if action in {confirm, complete}:
        await ship(orders, order)
    orders.publisher.messages.clear()
    return await orders.order(order.order_id)


def told(orders: RunningOrders) -> list[str]:
    return sorted(message.tag for message in orders.publisher.messages)


async def all_orders(orders: RunningOrders) -> list[Order]:
    return (await orders.application.use_cases.queries.orders(OrderFilter(), 100, None)).items


async def test_created_names_the_deadline_that_the_order_has(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()

        async def pass_time(_transaction_id: str) -> None:
            await orders.clock.advance(3)

        orders.publisher.before_local = pass_time
        order = await orders.place("k")
        (message,) = orders.publisher.taken("order-events", "created")
        assert message.key == order.order_id
        assert json.loads(message.body)["expires_at_ms"] == order.expires_at_ms
        assert await orders.order(order.order_id) == order


@pytest.mark.mechanism("U4")
async def test_an_order_whose_process_died_after_the_commit_is_told_by_the_check(
    new_database_url: NewDatabaseUrl,
) -> None:
    publisher = RecordingPublisher()
    async with running_orders(new_database_url("orders"), publisher=publisher) as orders:
        await orders.add_product()
        publisher.after_local = die
        with pytest.raises(ProcessDeathError):
            await orders.place("k")
    async with running_orders(new_database_url("orders"), seed=2, publisher=publisher) as orders:
        assert publisher.messages == []
        await orders.check_back()
        (order,) = await all_orders(orders)
        assert [(message.tag, message.key) for message in publisher.messages] == [("created", order.order_id)]
        assert publisher.halves == {}
        assert (await orders.place("k")).order_id == order.order_id  # the buyer's retry


@pytest.mark.mechanism("U4")
async def test_an_order_whose_process_died_before_its_transaction_leaves_nothing(
    new_database_url: NewDatabaseUrl,
) -> None:
    publisher = RecordingPublisher()
    async with running_orders(new_database_url("orders"), publisher=publisher) as orders:
        await orders.add_product()
        publisher.before_local = die
        with pytest.raises(ProcessDeathError):
            await orders.place("k")
    async with running_orders(new_database_url("orders"), seed=2, publisher=publisher) as orders:
        await orders.check_back()
        assert (publisher.messages, publisher.halves, await all_orders(orders)) == ([], {}, [])
        assert (await orders.product()).reserved == 0


@pytest.mark.mechanism("U4")
async def test_an_order_that_comes_after_its_check_is_given_up_and_the_retry_is_a_new_attempt(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()

        async def stall(_transaction_id: str) -> None:
            await orders.check_back()

        before_local, orders.publisher.before_local = orders.publisher.before_local, stall
        rejected = await orders.post_order("k")
        assert (rejected.status_code, rejected.headers["Retry-After"]) == (503, "1")
        assert rejected.json()["type"] == "urn:hourglass:problem:transaction-given-up"
        assert (orders.publisher.messages, await all_orders(orders)) == ([], [])
        orders.publisher.before_local = before_local
        assert (await orders.post_order("k")).status_code == 201
        assert len(orders.publisher.taken("order-events", "created")) == 1


@ACTIONS
async def test_a_change_whose_process_died_after_the_commit_is_told_by_the_check(
    new_database_url: NewDatabaseUrl, action: Action, tags: list[str], status: OrderStatus
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, action)
        orders.publisher.after_local = die
        with pytest.raises(ProcessDeathError):
            await action(orders, order)
        assert told(orders) == []
        await orders.check_back()
        assert told(orders) == tags
        assert {message.key for message in orders.publisher.messages} == {order.order_id}
        assert (await orders.order(order.order_id)).status is status


@ACTIONS
async def test_a_change_whose_process_died_before_its_transaction_did_not_happen(
    new_database_url: NewDatabaseUrl, action: Action, tags: list[str], status: OrderStatus
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, action)
        product = await orders.product()
        orders.publisher.before_local = die
        with pytest.raises(ProcessDeathError):
            await action(orders, order)
        await orders.check_back()
        assert (told(orders), orders.publisher.halves) == ([], {})
        assert (await orders.order(order.order_id), await orders.product()) == (order, product)
        assert (await orders.application.use_cases.queries.statistics()).refund_requests == 0


@ACTIONS
async def test_a_change_that_comes_after_its_check_is_given_up(
    new_database_url: NewDatabaseUrl, action: Action, tags: list[str], status: OrderStatus
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, action)
        before_local = orders.publisher.before_local

        async def stall(_transaction_id: str) -> None:
            await orders.check_back()

        orders.publisher.before_local = stall
        with pytest.raises(TransactionGivenUpError):
            await action(orders, order)
        assert await orders.order(order.order_id) == order
        orders.publisher.before_local = before_local
        await action(orders, order)  # the message is delivered again
        assert told(orders) == tags
        assert (await orders.order(order.order_id)).status is status


@ACTIONS
async def test_without_the_queue_nothing_changes(
    new_database_url: NewDatabaseUrl, action: Action, tags: list[str], status: OrderStatus
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, action)
        orders.publisher.is_down = True
        with pytest.raises(PublishError):
            await action(orders, order)
        assert await orders.order(order.order_id) == order


async def test_an_order_that_loses_its_stock_while_the_half_message_is_sent_is_rejected(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()

        async def be_overtaken(_transaction_id: str) -> None:
            async with orders.database.writing() as connection:
                await connection.execute(text("UPDATE products SET available = 0, reserved = 10"))
                await connection.commit()

        orders.publisher.before_local = be_overtaken
        rejected = await orders.post_order("k")
        assert (rejected.status_code, rejected.json()["available"]) == (409, 0)
        assert (orders.publisher.messages, orders.publisher.halves, await all_orders(orders)) == ([], {}, [])

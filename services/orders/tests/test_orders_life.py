"""The life of an order from first to last: who changes it, in which version, and who is told that it does not exist."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
from opentelemetry.sdk.trace import TracerProvider

from orders.domain.errors import IllegalTransitionError, UnknownOrderError, VersionMismatchError
from orders.domain.order import ChangeReason, Order, OrderStatus
from orders.domain.product import Product
from orders.service.payments import PaymentOutcome
from orders.service.use_case import OrderFilter
from orders.testing import BUYER, PRODUCT, SELLER, RunningOrders, caller, running_orders
from servicekit.auth import ORDERS_ALL, ORDERS_READ, ORDERS_WRITE, Caller
from servicekit.errors import PublishError
from servicekit.testing.databases import NewDatabaseUrl

STRANGER = caller("buyer", "buyer-2")
ANOTHER_SELLER = caller("seller", "seller-2")
# Sees all orders and may not ship: neither the order's buyer nor its seller.
ONLOOKER = Caller("onlooker", frozenset({ORDERS_READ, ORDERS_WRITE, ORDERS_ALL}))

Command = Callable[[RunningOrders, Order, Caller, int | None], Awaitable[Order]]


def stock(product: Product) -> tuple[int, int, int]:
    return product.available, product.reserved, product.sold


async def cancel(orders: RunningOrders, order: Order, who: Caller, version: int | None = None) -> Order:
    return await orders.cancel(order.order_id, who, version)


async def ship(orders: RunningOrders, order: Order, who: Caller, version: int | None = None) -> Order:
    return await orders.application.use_cases.ship_order(order.order_id, who, version)


async def confirm(orders: RunningOrders, order: Order, who: Caller, version: int | None = None) -> Order:
    return await orders.application.use_cases.confirm_receipt(order.order_id, who, version)


async def order_for(orders: RunningOrders, command: Command) -> Order:
    """An order that the command can change."""
    await orders.add_product()
    order = await orders.place("k")
    if command is not cancel:
        await orders.pay(order)
    if command is confirm:
        await ship(orders, order, SELLER)
    return await orders.order(order.order_id)


async def test_the_history_tells_every_change_from_first_to_last_with_its_actor_and_trace(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        with TracerProvider().get_tracer("test").start_as_current_span("placing") as span:
            order = await orders.place("k", quantity=3)
            trace_id = f"{span.get_span_context().trace_id:032x}"
        await orders.clock.advance(60)
        await orders.pay(order)
        await orders.clock.advance(3600)
        shipped = await ship(orders, order, SELLER)
        await orders.clock.advance(86_400)
        completed = await confirm(orders, order, BUYER)
        start_ms = order.created_at_ms
        told = [
            (
                change.old_status,
                change.new_status,
                change.reason,
                change.at_ms - start_ms,
                change.actor,
                change.trace_id,
            )
            for change in await orders.history(order.order_id)
        ]
        pending, awaiting, on_its_way, done, _ = OrderStatus
        assert told == [
            (None, pending, ChangeReason.PLACED, 0, "buyer-1", trace_id),
            (pending, awaiting, ChangeReason.PAID, 60_000, "order-payment-handler", trace_id),
            (awaiting, on_its_way, ChangeReason.SHIPPED, 3_660_000, "seller-1", trace_id),
            (on_its_way, done, ChangeReason.RECEIVED, 90_060_000, "buyer-1", trace_id),
        ]
        assert completed == await orders.order(order.order_id)
        assert (shipped.version, completed.version) == (3, 4)
        assert (completed.shipped_at_ms, completed.completed_at_ms) == (shipped.shipped_at_ms, start_ms + 90_060_000)
        assert [message.tag for message in orders.publisher.messages] == ["created", "paid", "shipped", "completed"]
        body = json.loads(orders.publisher.messages[-1].body)
        assert (body["version"], body["payment_id"], body["reason"]) == (1, "payment-1", "received")
        assert stock(await orders.product()) == (PRODUCT.available - 3, 0, 3)
        assert (await orders.place("k", quantity=3)) == order  # a repeated request, answered as it was placed


async def test_a_seller_cancels_a_paid_order_its_units_come_back_and_its_money_is_asked_back_once(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k", quantity=4)
        await orders.pay(order, "payment-7")
        orders.publisher.messages.clear()
        closed = await cancel(orders, order, SELLER)
        assert closed == await orders.order(order.order_id)
        assert (closed.status, closed.payment_id, closed.version) == (OrderStatus.CLOSED, "payment-7", 3)
        assert stock(await orders.product()) == (PRODUCT.available, 0, 0)
        bodies = {message.tag: json.loads(message.body) for message in orders.publisher.messages}
        assert len(orders.publisher.messages) == 2
        assert (bodies["closed"]["payment_id"], bodies["closed"]["reason"]) == ("payment-7", "seller-cancelled")
        refund = bodies["refund-requested"]
        assert (refund["payment_id"], refund["amount_minor"], refund["reason"]) == (
            "payment-7",
            order.total_minor,
            "order-cancelled",
        )
        statistics = await orders.application.use_cases.queries.statistics()
        assert (statistics.refund_requests, statistics.paid_orders) == (1, 1)
        assert await cancel(orders, order, SELLER) == closed
        assert await orders.pay(order, "payment-7") is PaymentOutcome.PAID_BEFORE
        assert len(orders.publisher.messages) == 2


async def test_a_seller_cancels_an_unpaid_order_and_no_money_is_asked_back(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, cancel)
        await cancel(orders, order, SELLER)
        assert (await orders.history(order.order_id))[-1].reason is ChangeReason.SELLER_CANCELLED
        assert stock(await orders.product()) == (PRODUCT.available, 0, 0)
        assert [message.tag for message in orders.publisher.messages] == ["created", "closed"]
        assert json.loads(orders.publisher.messages[-1].body)["payment_id"] is None


async def test_what_the_states_do_not_allow_is_rejected(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, cancel)

        async def is_rejected(command: Command, who: Caller) -> None:
            before = await orders.order(order.order_id)
            with pytest.raises(IllegalTransitionError):
                await command(orders, order, who, None)
            assert await orders.order(order.order_id) == before

        await is_rejected(ship, SELLER)
        await is_rejected(confirm, BUYER)
        await orders.pay(order)
        await is_rejected(cancel, BUYER)
        await is_rejected(confirm, BUYER)
        await ship(orders, order, SELLER)
        await is_rejected(cancel, BUYER)
        await is_rejected(cancel, SELLER)
        await is_rejected(ship, ANOTHER_SELLER)
        await confirm(orders, order, BUYER)
        for command, who in ((cancel, BUYER), (cancel, SELLER), (ship, ANOTHER_SELLER)):
            await is_rejected(command, who)


COMMANDS = pytest.mark.parametrize(
    ("command", "who"), [(cancel, BUYER), (cancel, SELLER), (ship, SELLER), (confirm, BUYER)]
)


@COMMANDS
async def test_a_command_for_another_version_changes_nothing(
    new_database_url: NewDatabaseUrl, command: Command, who: Caller
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, command)
        attempts = orders.publisher.attempts
        for version in (order.version - 1, order.version + 1):
            with pytest.raises(VersionMismatchError):
                await command(orders, order, who, version)
        assert (await orders.order(order.order_id), orders.publisher.attempts) == (order, attempts)
        assert (await command(orders, order, who, order.version)).version == order.version + 1


@COMMANDS
async def test_a_command_is_answered_again_as_the_first_time_when_its_answer_was_lost(
    new_database_url: NewDatabaseUrl, command: Command, who: Caller
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, command)
        first = await command(orders, order, who, order.version)
        attempts = orders.publisher.attempts
        assert await command(orders, order, who, None) == first
        assert await command(orders, order, who, order.version) == first
        with pytest.raises(VersionMismatchError):
            await command(orders, order, who, order.version - 1)
        if command is ship:
            await confirm(orders, order, BUYER)
            attempts = orders.publisher.attempts
            assert await command(orders, order, who, None) == first
        assert orders.publisher.attempts == attempts


async def test_a_command_that_meets_its_own_first_try_is_answered_as_that(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, ship)
        go_on = orders.publisher.before_local
        first: list[Order] = []

        async def ship_meanwhile(_transaction_id: str) -> None:
            orders.publisher.before_local = go_on
            first.append(await ship(orders, order, SELLER, order.version))

        orders.publisher.before_local = ship_meanwhile
        assert [await ship(orders, order, SELLER, order.version)] == first


async def test_a_race_that_is_lost_after_the_reading_is_a_mismatch_for_a_caller_with_a_version(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, cancel)
        go_on = orders.publisher.before_local

        async def pay_meanwhile(_transaction_id: str) -> None:
            orders.publisher.before_local = go_on
            await orders.pay(order)

        orders.publisher.before_local = pay_meanwhile
        with pytest.raises(VersionMismatchError):
            await cancel(orders, order, BUYER, order.version)
        assert (await orders.order(order.order_id)).status is OrderStatus.AWAITING_SHIPMENT


@pytest.mark.parametrize("command", [cancel, ship, confirm])
async def test_the_order_of_another_buyer_is_answered_as_one_that_does_not_exist(
    new_database_url: NewDatabaseUrl, command: Command
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, command)
        queries = orders.application.use_cases.queries
        with pytest.raises(UnknownOrderError) as unknown:
            await queries.order("ghost", STRANGER)
        for attempt in (queries.order(order.order_id, STRANGER), queries.history(order.order_id, STRANGER)):
            with pytest.raises(UnknownOrderError) as rejected:
                await attempt
            assert str(rejected.value) == str(unknown.value).replace("ghost", order.order_id)
        # Versions are not told either: a caller that may not see the order does not learn that a version is wrong.
        for version in (None, 99):
            with pytest.raises(UnknownOrderError):
                await command(orders, order, STRANGER, version)
        assert await orders.order(order.order_id) == order


@pytest.mark.parametrize("command", [cancel, confirm])
async def test_what_is_the_buyers_to_do_no_other_caller_does(
    new_database_url: NewDatabaseUrl, command: Command
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, command)
        assert await orders.application.use_cases.queries.order(order.order_id, ONLOOKER) == order
        with pytest.raises(UnknownOrderError):
            await command(orders, order, ONLOOKER, None)
        assert await orders.order(order.order_id) == order


async def test_a_seller_cancel_that_cannot_tell_of_the_refund_changes_nothing(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_for(orders, ship)
        orders.publisher.messages.clear()
        go_on = orders.publisher.before_local

        async def break_down(_transaction_id: str) -> None:
            orders.publisher.before_local = go_on
            orders.publisher.is_down = True  # the half message of `closed` is taken, that of the refund is not

        orders.publisher.before_local = break_down
        with pytest.raises(PublishError):
            await cancel(orders, order, SELLER)
        orders.publisher.is_down = False
        assert (await orders.order(order.order_id), orders.publisher.messages, orders.publisher.halves) == (
            order,
            [],
            {},
        )
        await cancel(orders, order, SELLER)
        assert sorted(message.tag for message in orders.publisher.messages) == ["closed", "refund-requested"]


async def test_orders_are_listed_by_the_time_of_their_creation(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        placed = []
        for key in "abc":
            placed.append(await orders.place(key))
            await orders.clock.advance(1)
        first, second, third = placed

        async def listed(wanted: OrderFilter) -> list[Order]:
            return (await orders.application.use_cases.queries.orders(wanted, 10, None)).items

        assert await listed(OrderFilter(created_from_ms=second.created_at_ms)) == [third, second]
        assert await listed(OrderFilter(created_before_ms=second.created_at_ms)) == [first]
        between = OrderFilter(created_from_ms=second.created_at_ms, created_before_ms=third.created_at_ms)
        assert await listed(between) == [second]

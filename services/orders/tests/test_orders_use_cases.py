"""Placing, cancelling and expiring orders, alone and against each other."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import text

from orders.domain.errors import (
    IllegalTransitionError,
    InsufficientStockError,
    MixedCurrenciesError,
    StatusChangedError,
    UnknownOrderError,
    UnknownProductError,
)
from orders.domain.order import ChangeReason, OrderLine, OrderStatus, Origin, RequestedLine, place
from orders.domain.product import Product
from orders.service.close_order import ExpiryOutcome
from orders.service.place_order import OrderRequest, Placed
from orders.testing import BUYER, SELLER, RunningOrders, running_orders
from servicekit.errors import KeyReusedError, RequestInFlightError
from servicekit.sql.units import KeyClaim
from servicekit.testing.databases import NewDatabaseUrl

REQUEST = OrderRequest("buyer-1", (RequestedLine("seat", 1),))


def stock(product: Product) -> tuple[int, int, int]:
    return product.available, product.reserved, product.sold


async def reasons(orders: RunningOrders, order_id: str) -> list[ChangeReason]:
    return [change.reason for change in await orders.history(order_id)]


async def test_an_order_reserves_its_units_and_tells_it(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        await orders.add_product(Product("meal", "A meal", 3000, "CNY", available=5))
        request = OrderRequest("buyer-1", (RequestedLine("seat", 2), RequestedLine("meal", 1)))
        order = (await orders.application.use_cases.place_order(request, "k")).order
        assert order == await orders.order(order.order_id)
        assert (order.status, order.total_minor, order.currency) == (OrderStatus.PENDING_PAYMENT, 34600, "CNY")
        assert order.expires_at_ms == order.created_at_ms + 1_800_000 == orders.clock.wall_ms() + 1_800_000
        assert stock(await orders.product("seat")) == (8, 2, 0)
        assert stock(await orders.product("meal")) == (4, 1, 0)
        assert await reasons(orders, order.order_id) == [ChangeReason.PLACED]
        (message,) = orders.publisher.taken("order-events", "created")
        assert message.key == order.order_id
        assert message.delay_level == 0


async def test_a_rejected_order_leaves_no_trace_and_its_key_may_be_used_again(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        await orders.add_product(Product("tea", "Tea", 1, "EUR", available=5))
        place_order = orders.application.use_cases.place_order
        for lines, error in (
            ((RequestedLine("seat", 1), RequestedLine("ghost", 1)), UnknownProductError),
            ((RequestedLine("seat", 1), RequestedLine("tea", 6)), MixedCurrenciesError),
            ((RequestedLine("seat", 11),), InsufficientStockError),
        ):
            with pytest.raises(error):
                await place_order(OrderRequest("buyer-1", lines), "k")
        assert stock(await orders.product()) == (10, 0, 0)
        await orders.place("k")
        assert len(orders.publisher.messages) == 1


async def test_the_last_unit_goes_to_exactly_one_of_many_buyers(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product(Product("seat", "A seat", 1, "CNY", available=1))
        results = await asyncio.gather(*(orders.place(f"k{n}") for n in range(10)), return_exceptions=True)
        assert sum(isinstance(result, InsufficientStockError) for result in results) == 9
        assert stock(await orders.product()) == (0, 1, 0)


async def test_a_reservation_that_comes_too_late_is_rejected_by_the_database(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        await orders.add_product(Product("meal", "A meal", 3000, "CNY", available=5))
        await orders.add_product(Product("tea", "Tea", 100, "CNY", available=5, is_on_sale=False))

        async def rejected(name: str, *lines: tuple[str, int, int]) -> set[str]:
            of_order = tuple(OrderLine(*line) for line in lines)
            order, first = place(name, "buyer-1", of_order, "CNY", Origin("buyer-1", 0), payment_window_ms=1)
            async with orders.application.units.writing() as unit:
                rejected = set(await unit.orders.place(order, first, KeyClaim("buyer-1", name, "f", name)))
                if not rejected:
                    await unit.commit()
            return rejected

        assert await rejected("too many", ("seat", 11, 15800), ("meal", 1, 3000)) == {"seat"}
        assert await rejected("another price", ("seat", 1, 15800), ("meal", 1, 2999)) == {"meal"}
        assert await rejected("not on sale", ("tea", 1, 100), ("meal", 6, 3000)) == {"meal", "tea"}
        assert await rejected("the last ones", ("seat", 10, 15800), ("meal", 5, 3000)) == set()
        assert await rejected("none left", ("seat", 1, 15800)) == {"seat"}
        assert stock(await orders.product("seat")) == (0, 10, 0)
        assert stock(await orders.product("meal")) == (0, 5, 0)


async def test_an_order_whose_units_are_not_there_is_not_closed(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k", quantity=2)
        async with orders.database.writing() as connection:
            await connection.execute(text("UPDATE products SET reserved = 1"))
            await connection.commit()
        with pytest.raises(RuntimeError, match="more units than its products"):
            await orders.cancel(order.order_id)
        assert await orders.order(order.order_id) == order
        assert stock(await orders.product()) == (8, 1, 0)


async def test_orders_of_the_same_products_in_any_order_do_not_wait_for_each_other_in_a_circle(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        names = [f"product-{number}" for number in range(4)]
        for name in names:
            await orders.add_product(Product(name, name, 1, "CNY", available=24))
        use_cases = orders.application.use_cases

        async def place_and_cancel(number: int) -> None:
            turned = [*names[number % 4 :], *names[: number % 4]]
            turned = turned[::-1] if number % 2 else turned
            request = OrderRequest("buyer-1", tuple(RequestedLine(name, 1) for name in turned[:3]))
            placed = await use_cases.place_order(request, f"k{number}")
            if number % 3:
                await orders.cancel(placed.order.order_id)

        await asyncio.gather(*(place_and_cancel(number) for number in range(24)))
        stocks = [stock(await orders.product(name)) for name in names]
        assert sum(reserved for _, reserved, _ in stocks) == 3 * 24 // 3
        assert [sum(numbers) for numbers in stocks] == [24] * 4


async def test_a_repeated_key_answers_with_the_order_as_it_was_placed(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        place_order = orders.application.use_cases.place_order
        first = await place_order(REQUEST, "k")
        await orders.cancel(first.order.order_id)
        assert await place_order(REQUEST, "k") == Placed(first.order, replayed=True)
        with pytest.raises(KeyReusedError):
            await place_order(OrderRequest("buyer-1", (RequestedLine("seat", 2),)), "k")
        assert stock(await orders.product()) == (10, 0, 0)


async def test_two_buyers_may_use_one_key_and_neither_sees_the_order_of_the_other(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        mine, theirs = await orders.place("k"), await orders.place("k", buyer_id="buyer-2")
        assert mine.order_id != theirs.order_id
        assert (await orders.place("k")) == mine
        for query in (orders.application.use_cases.queries.order, orders.application.use_cases.queries.history):
            with pytest.raises(UnknownOrderError):
                await query(theirs.order_id, BUYER)
        with pytest.raises(UnknownOrderError):
            await orders.cancel(theirs.order_id)


async def test_of_concurrent_requests_with_one_key_one_makes_an_order_and_the_others_are_told_to_wait(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        place_order = orders.application.use_cases.place_order
        results = await asyncio.gather(*(place_order(REQUEST, "k") for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(result, Placed) for result in results) == 1
        assert sum(isinstance(result, RequestInFlightError) for result in results) == 4
        assert (await place_order(REQUEST, "k")).replayed
        assert stock(await orders.product()) == (9, 1, 0)


async def test_a_key_that_another_process_has_just_claimed_is_in_flight(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        (first,) = await orders.history(order.order_id)
        claim = KeyClaim("buyer-1", "k", "f", order.order_id)

        async def claim_with_an_order() -> None:
            async with orders.application.units.writing() as unit:
                await unit.orders.place(replace(order, order_id="other"), replace(first, order_id="other"), claim)

        async def claim_alone() -> None:
            async with orders.application.units.writing() as unit:
                await unit.keys.claim(claim, 1)

        for attempt in (claim_with_an_order, claim_alone):
            with pytest.raises(RequestInFlightError):
                await attempt()


async def test_cancelling_frees_the_units_and_tells_it_once(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k", quantity=3)
        closed = await orders.cancel(order.order_id)
        assert closed.status is OrderStatus.CLOSED
        assert closed == await orders.order(order.order_id)
        assert stock(await orders.product()) == (10, 0, 0)
        assert await orders.cancel(order.order_id) == closed  # the answer may have been lost
        with pytest.raises(IllegalTransitionError):
            await orders.cancel(order.order_id, SELLER)
        with pytest.raises(UnknownOrderError):
            await orders.cancel("ghost")
        assert await reasons(orders, order.order_id) == [ChangeReason.PLACED, ChangeReason.CANCELLED]
        assert len(orders.publisher.taken("order-events", "closed")) == 1


async def test_no_order_expires_before_its_time(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        expire = orders.application.use_cases.close_order.expire
        orders.clock.set_wall_ms(order.expires_at_ms - 1)
        assert await expire(order.order_id) is ExpiryOutcome.TOO_EARLY
        orders.clock.set_wall_ms(order.expires_at_ms)
        assert await expire(order.order_id) is ExpiryOutcome.CLOSED
        assert (await orders.order(order.order_id)).closed_at_ms == order.expires_at_ms
        assert await expire(order.order_id) is ExpiryOutcome.ALREADY_DECIDED
        assert await expire("ghost") is ExpiryOutcome.UNKNOWN_ORDER
        assert stock(await orders.product()) == (10, 0, 0)


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_cancelling_against_expiring_has_exactly_one_winner(
    new_database_url: NewDatabaseUrl, cancel_first: bool
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        close_order = orders.application.use_cases.close_order
        placed = [await orders.place(f"k{n}") for n in range(5)]
        await orders.pass_payment_window()
        for order in placed:
            contenders = [orders.cancel(order.order_id), close_order.expire(order.order_id)]
            results = await asyncio.gather(*contenders[:: 1 if cancel_first else -1], return_exceptions=True)
            expired = ExpiryOutcome.CLOSED in results
            lost = [result for result in results if isinstance(result, StatusChangedError | IllegalTransitionError)]
            assert expired == bool(lost)
            winner = ChangeReason.EXPIRED if expired else ChangeReason.CANCELLED
            assert await reasons(orders, order.order_id) == [ChangeReason.PLACED, winner]
        assert stock(await orders.product()) == (10, 0, 0)


async def test_a_decision_on_an_old_reading_loses_by_compare_and_set(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        stale = await orders.place("k")
        await orders.cancel(stale.order_id)
        close_order = orders.application.use_cases.close_order
        with pytest.raises(StatusChangedError):
            await close_order.close(stale, ChangeReason.EXPIRED, Origin("test", orders.clock.wall_ms()))
        assert await reasons(orders, stale.order_id) == [ChangeReason.PLACED, ChangeReason.CANCELLED]
        assert stock(await orders.product()) == (10, 0, 0)
        assert [message.tag for message in orders.publisher.messages] == ["created", "closed"]
        assert orders.publisher.halves == {}

"""A seller changes products beside buyers who order them: price, stock, and whether they are on sale."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from orders.domain.errors import InsufficientStockError, PriceChangedError, SaleEndedError
from orders.domain.order import Order
from orders.domain.product import Product, ProductChange
from orders.testing import BUYER, PRODUCT, RunningOrders, running_orders
from servicekit.testing.databases import NewDatabaseUrl

WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")


async def patch(orders: RunningOrders, role: str = "seller", product_id: str = "seat", **body: Any) -> httpx.Response:
    return await orders.http.patch(f"/products/{product_id}", json=body, headers=orders.headers(role, f"{role}-1"))


async def changed(orders: RunningOrders, **body: Any) -> dict[str, Any]:
    answer = await patch(orders, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def units(product: Product) -> tuple[int, int, int]:
    return product.available, product.reserved, product.sold


async def test_an_order_keeps_the_price_that_it_was_placed_at(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        before = await orders.place("k", quantity=2)
        assert (await changed(orders, price_minor=200))["version"] == 2
        assert (await orders.order(before.order_id)).total_minor == before.total_minor == 2 * PRODUCT.price_minor
        assert (await orders.place("k", quantity=2)) == before  # the same request, and the same answer
        await orders.pay(before)
        assert (await orders.order(before.order_id)).payment_id == "payment-1"
        assert (await orders.place("new key", quantity=2)).total_minor == 400


async def test_an_ended_sale_takes_no_orders_and_leaves_those_that_there_are(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        paid, expired = await orders.place("paid"), await orders.place("expired")
        assert (await changed(orders, is_on_sale=False))["is_on_sale"] is False
        rejected = await orders.post_order("new")
        assert (rejected.status_code, rejected.json()["type"]) == (409, "urn:hourglass:problem:sale-ended")
        assert rejected.json()["product_id"] == "seat"
        assert (await orders.post_order("paid", items=[{"product_id": "seat", "quantity": 1}])).status_code == 201
        await orders.pay_and_ship(paid)
        await orders.pass_payment_window()
        await orders.application.use_cases.close_order.expire(expired.order_id)
        assert units(await orders.product()) == (9, 0, 1)
        assert (await orders.post_order("new")).status_code == 409  # also for the unit that came back
        for is_on_sale, listed in ((True, []), (False, ["seat"])):
            page = (await orders.http.get("/products", params={"is_on_sale": is_on_sale})).json()
            assert [product["product_id"] for product in page["items"]] == listed
        assert (await changed(orders, is_on_sale=True))["version"] == 3
        assert (await orders.post_order("new")).status_code == 201


async def test_a_change_of_stock_counts_what_orders_have(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        await orders.place("k", quantity=3)
        await orders.pay(await orders.place("paid", quantity=2))
        product = await changed(orders, total=8)
        assert (product["available"], product["reserved"], product["sold"], product["total"]) == (3, 3, 2, 8)
        assert (await changed(orders, total=8)) == product  # sent again, it changes nothing
        rejected = await patch(orders, total=4)
        assert (rejected.status_code, rejected.json()["type"]) == (409, "urn:hourglass:problem:units-in-orders")
        assert rejected.json()["in_orders"] == 5
        assert units(await orders.product()) == (3, 3, 2)


async def test_a_change_is_made_on_the_version_that_its_seller_has_seen(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        await orders.place("k")  # is no change of the seller's
        assert (await changed(orders, total=20, version=1))["version"] == 2
        assert (await changed(orders, total=20, version=1))["version"] == 2  # its answer was lost
        rejected = await patch(orders, total=30, version=1)
        assert (rejected.status_code, rejected.json()["type"]) == (409, "urn:hourglass:problem:product-changed")
        assert rejected.json()["version"] == 2
        assert (await orders.product()).total == 20


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"price_minor": 0}, "body.price_minor"),
        ({"total": -1}, "body.total"),
        ({"total": 10**9 + 1}, "body.total"),
        ({"is_on_sale": "no"}, "body.is_on_sale"),
        ({"version": 0}, "body.version"),
        ({"available": 3}, "body.available"),
        ({"name": "Another"}, "body.name"),
    ],
)
async def test_a_change_that_makes_no_sense_is_rejected_with_its_field(
    new_database_url: NewDatabaseUrl, body: dict[str, Any], field: str
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        rejected = await patch(orders, **body)
        assert (rejected.status_code, [found["field"] for found in rejected.json()["errors"]]) == (422, [field])
        assert await orders.product() == PRODUCT


async def test_only_a_seller_changes_a_product_and_only_one_that_there_is(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        assert (await patch(orders, "buyer", price_minor=1)).status_code == 403
        assert (await patch(orders, product_id="ghost", price_minor=1)).status_code == 404
        assert await orders.product() == PRODUCT


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (ProductChange(is_on_sale=False), SaleEndedError),
        (ProductChange(price_minor=200), PriceChangedError),
        (ProductChange(total=0), InsufficientStockError),
    ],
)
async def test_a_change_while_the_half_message_is_sent_rejects_the_order(
    new_database_url: NewDatabaseUrl, change: ProductChange, error: type[Exception]
) -> None:
    """The message names the price that was read before it: an order at another one would be told wrongly."""
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()

        async def overtake(_transaction_id: str) -> None:
            await orders.application.use_cases.change_product("seat", change)

        orders.publisher.before_local = overtake
        with pytest.raises(error):
            await orders.place("k")
        product = await orders.product()
        assert (product.reserved, product.sold, product.version) == (0, 0, 2)
        assert (orders.publisher.messages, orders.publisher.halves) == ([], {})


async def test_an_order_at_another_total_than_its_buyer_has_seen_is_rejected(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        await changed(orders, price_minor=200)
        rejected = await orders.post_order("k", expected_total_minor=PRODUCT.price_minor)
        assert (rejected.status_code, rejected.json()["type"]) == (409, "urn:hourglass:problem:price-changed")
        assert (await orders.post_order("k", expected_total_minor=200)).status_code == 201
        # It is a condition, and no part of what the key stands for.
        assert (await orders.post_order("k")).headers["Idempotency-Replayed"] == "true"


async def wait_until_it_waits(orders: RunningOrders, placing: asyncio.Task[Order]) -> None:
    """Until the order has come as far as a seller's open change lets it."""
    while not placing.done():
        async with orders.database.autocommit() as connection:
            if connection.dialect.name != "postgresql":  # one unit writes at a time
                return
            if (await connection.execute(WAITING)).scalar_one():
                return


async def test_an_order_waits_for_a_change_of_stock_and_is_not_lost_in_it(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        async with orders.application.units.writing() as unit:
            found = await unit.products.get_locked("seat")
            placing = asyncio.create_task(orders.place("k"))
            await wait_until_it_waits(orders, placing)
            await unit.products.change(found.changed(ProductChange(total=20)))
            await unit.commit()
        await placing
        assert units(await orders.product()) == (19, 1, 0)


async def test_no_reservation_is_lost_while_a_seller_changes_the_stock(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()  # 10 units
        change_product = orders.application.use_cases.change_product

        async def bring() -> None:
            for total in range(11, 21):
                await change_product("seat", ProductChange(total=total))

        buyers = [orders.place(f"k{number}") for number in range(40)]
        results = await asyncio.gather(*buyers[:20], bring(), *buyers[20:], return_exceptions=True)
        kinds = Counter(type(result) for result in results)
        assert set(kinds) <= {Order, type(None), InsufficientStockError}, results
        product = await orders.product()
        assert (product.reserved, product.total) == (kinds[Order], 20)
        assert kinds[Order] >= PRODUCT.available
        for order in [result for result in results if isinstance(result, Order)]:
            await orders.cancel(order.order_id, BUYER)
        assert units(await orders.product()) == (20, 0, 0)

"""A seller puts products on sale from the list of products."""

from __future__ import annotations

import pytest

from orders.pages.testing_visitor import shop_of
from servicekit.testing.databases import NewDatabaseUrl

LAMP = {"product_id": "lamp", "name": "A <lamp>", "price": "12.5", "currency": "CNY", "available": "7"}


async def test_a_seller_puts_a_product_on_sale_and_a_buyer_orders_it(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("sam", "seller") as seller:
        assert 'action="/shop/products"' in (await seller.get("/")).text
        answer = await seller.send("/products", **LAMP)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/shop/")
        page = (await seller.get("/")).text
        assert "A &lt;lamp&gt;" in page
        assert "¥12.50" in page
        async with shop.visitor("ann") as ann:
            order = await shop.orders.order(await ann.order("lamp", 2))
        assert (order.total_minor, order.currency) == (2500, "CNY")
        again = await seller.send("/products", **LAMP)
        assert again.status_code == 409
        assert "The product exists already." in again.text


@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        ({"price": "12.505"}, "is not an amount of CNY"),
        ({"price": "0"}, "price_minor"),
        ({"price": "1e3"}, "is not an amount"),
        ({"available": "-1"}, "available"),
        ({"available": "many"}, "available"),
        ({"name": " "}, "name"),
        ({"product_id": "a b"}, "product_id"),
        ({"currency": "cny"}, "currency"),
    ],
)
async def test_a_field_that_makes_no_sense_is_told_and_nothing_is_sold(
    new_database_url: NewDatabaseUrl, wrong: dict[str, str], detail: str
) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("sam", "seller") as seller:
        answer = await seller.send("/products", **{**LAMP, **wrong})
        assert answer.status_code == 422
        assert detail in answer.text
        assert "lamp" not in (await seller.get("/")).text


async def test_only_a_seller_may_and_sees_the_form(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("ann") as ann:
        assert 'action="/shop/products"' not in (await ann.get("/")).text
        assert (await ann.send("/products", **LAMP)).status_code == 403
        async with shop.visitor(None) as nobody:
            assert (await nobody.send("/products", **LAMP)).headers["Location"].startswith("/shop/session")
        assert "lamp" not in (await ann.get("/")).text

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


async def test_a_seller_changes_price_and_stock_beside_an_order(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("sam", "seller") as seller:
        seen = await seller.form("/", "/products/seat")
        async with shop.visitor("ann") as ann:
            before = await shop.orders.order(await ann.order("seat", 2))  # of 10, after the seller has looked
        for _ in range(2):  # a double click brings the units once
            answer = await seller.send("/products/seat", **seen, price="120.5", more="5")
            assert (answer.status_code, answer.headers["Location"]) == (303, "/shop/")
        product = await shop.orders.product("seat")
        assert (product.price_minor, product.available, product.reserved) == (12050, 13, 2)
        assert (await shop.orders.order(before.order_id)).total_minor == 2 * 15800
        page = (await seller.get("/")).text
        assert "¥120.50" in page
        assert "13 available, 2 reserved, 0 sold" in page
        late = await seller.send("/products/seat", **seen, price="1", more="0")
        assert (late.status_code, "has changed since you looked at it" in late.text) == (409, True)
        much = await seller.send("/products/seat", **await seller.form("/", "/products/seat"), price="1", more="-14")
        assert (much.status_code, "Orders have more units" in much.text) == (409, True)
        wrong = await seller.send("/products/seat", **seen, price="0.001", more="0")
        assert (wrong.status_code, "is not an amount of CNY" in wrong.text) == (422, True)


async def test_an_ended_sale_is_seen_by_sellers_only_and_cannot_be_ordered(new_database_url: NewDatabaseUrl) -> None:
    async with (
        shop_of(new_database_url("orders")) as shop,
        shop.visitor("sam", "seller") as seller,
        shop.visitor("ann") as ann,
    ):
        await ann.send("/cart/add", product_id="seat", quantity="1")
        form = await ann.form("/cart", "/orders")
        ended = await seller.send("/products/seat/sale", **await seller.form("/", "/products/seat/sale"))
        assert ended.status_code == 303
        rejected = await ann.send("/orders", **form)
        assert (rejected.status_code, "no longer on sale" in rejected.text) == (409, True)
        assert "This product is no longer on sale." in (await ann.get("/cart")).text
        assert 'data-product="seat"' not in (await ann.get("/")).text
        assert "The sale has ended" in (await seller.get("/")).text
        await seller.send("/products/seat/sale", **await seller.form("/", "/products/seat/sale"))
        assert (await ann.send("/orders", **form)).status_code == 303
        assert (await ann.send("/products/seat/sale", is_on_sale="false")).status_code == 403
        assert (await ann.send("/products/seat", price="1", more="0", total="1", version="1")).status_code == 403


async def test_a_buyer_orders_at_the_price_that_the_cart_has_shown(new_database_url: NewDatabaseUrl) -> None:
    async with (
        shop_of(new_database_url("orders")) as shop,
        shop.visitor("sam", "seller") as seller,
        shop.visitor("ann") as ann,
    ):
        await ann.send("/cart/add", product_id="seat", quantity="1")
        form = await ann.form("/cart", "/orders")
        await seller.send("/products/seat", **await seller.form("/", "/products/seat"), price="999", more="0")
        rejected = await ann.send("/orders", **form)
        assert (rejected.status_code, "A price has just changed" in rejected.text) == (409, True)
        assert "¥999.00" in (await ann.get("/cart")).text
        order_id = (await ann.send("/orders", **await ann.form("/cart", "/orders"))).headers["Location"]
        assert (await shop.orders.order(order_id.rpartition("/")[2])).total_minor == 99900

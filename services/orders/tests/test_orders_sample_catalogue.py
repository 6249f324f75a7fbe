"""The samples that a shop can begin with: loaded once, named in both languages, with pictures."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files
from xml.etree import ElementTree

import pytest

from orders.domain.product import Product, ProductChange
from orders.pages.testing_visitor import PageVisitor, shop_of
from orders.service.sample_catalogue import SAMPLE_CATALOGUE, LoadSampleCatalogue
from orders.testing import RunningOrders, running_orders
from servicekit.testing.databases import NewDatabaseUrl

PICTURES = files("orders.pages").joinpath("static").joinpath("products")
PICTURE_BYTES_MAX = 2_000
SVG = "{http://www.w3.org/2000/svg}"
# Shapes with attributes: no script, no style, nothing from elsewhere.
ELEMENTS = {f"{SVG}{name}" for name in ("svg", "g", "path", "rect", "circle", "ellipse")}
ATTRIBUTES = {"d", "x", "y", "width", "height", "rx", "ry", "r", "cx", "cy", "viewBox"} | {
    *("fill", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin")
}


async def load(orders: RunningOrders) -> None:
    await LoadSampleCatalogue(orders.application.units)()


async def stored(orders: RunningOrders) -> dict[str, Product]:
    page = await orders.application.use_cases.queries.products(100, None)
    return {product.product_id: product for product in page.items}


async def test_what_a_seller_has_changed_stays_when_the_shop_starts_again(new_database_url: NewDatabaseUrl) -> None:
    url = new_database_url("orders")
    async with running_orders(url) as orders:
        own = Product("lunch-box", "A lunch box of my own", 100, "USD", available=1)
        await orders.add_product(own)
        await load(orders)
        assert await stored(orders) == {**SAMPLE_CATALOGUE, "lunch-box": own}
        change = orders.application.use_cases.change_product
        await change("tea", ProductChange(total=0, price_minor=1))
        await change("hourglass", ProductChange(is_on_sale=False))
        await orders.place("key", product_id="bicycle-space", quantity=2)
        before = await stored(orders)
    async with running_orders(url) as restarted:
        await load(restarted)
        assert await stored(restarted) == before


async def test_two_processes_that_start_at_once_load_each_sample_once(new_database_url: NewDatabaseUrl) -> None:
    url = new_database_url("orders")
    async with running_orders(url) as one, running_orders(url, seed=2) as other:
        await asyncio.gather(*(load(orders) for orders in (one, other)))
        assert await stored(one) == await stored(other) == SAMPLE_CATALOGUE


async def test_pages_name_samples_in_the_language_of_their_reader(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("ann") as ann:
        await shop.orders.add_product(Product("tea", "My own tea", 100, "CNY", available=5))
        await load(shop.orders)
        english, chinese = (await ann.get("/?lang=en")).text, (await ann.get("/?lang=zh")).text
        assert '/static/products/Z281-berth.svg" alt="Two bunks, one above the other,' in english
        assert "Sleeper berth, train Z281" in english
        assert "卧铺，Z281 次列车" in chinese
        assert "Sleeper berth" not in chinese
        for page in (english, chinese):  # a seller's product that only has a sample's id
            assert "My own tea" in page
            assert "tea.svg" not in page
        await ann.send("/cart/add", product_id="Z281-berth", quantity="5")
        assert "卧铺，Z281 次列车" in (await ann.get("/cart")).text
        too_many = await ann.send("/orders", **await ann.form("/cart", "/orders"))
        assert (too_many.status_code, "卧铺，Z281 次列车" in too_many.text) == (409, True)
        await ann.send("/cart/update", product_id="Z281-berth", quantity="0")
        order_id = await ann.order("Z281-berth")
        assert "卧铺，Z281 次列车" in (await ann.get(f"/orders/{order_id}")).text


async def steps(visitor: PageVisitor) -> str:
    """The text of the guide on the first page; empty without one."""
    found = re.search(r'<section class="card guide".*?</section>', (await visitor.get("/")).text, re.DOTALL)
    return "" if found is None else " ".join(re.sub("<.*?>", " ", found[0]).split())


async def test_the_first_page_leads_through_a_purchase(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders"), payment_window_ms=1_800_000) as shop:
        async with shop.visitor(None) as visitor:
            text = await steps(visitor)
            assert "Put a product into the cart." in text
            assert "Sign in. This is a sandbox: choose any name." in text
            assert "Pay within 30 minutes." in text
            assert 'href="/shop/session"' in (await visitor.get("/")).text
        async with shop.visitor("ann") as buyer:
            text = await steps(buyer)
            assert "Put a product into the cart." in text
            assert "Sign in" not in text
        async with shop.visitor("sam", "seller") as seller:
            assert await steps(seller) == ""


@pytest.mark.parametrize(
    ("command", "how"),
    [
        (None, "Sign in. Sign in with the access token that you were given."),
        ("make token <x>", "Sign in. This command prints an access token for a buyer: make token &lt;x&gt;"),
    ],
)
async def test_a_visitor_learns_where_an_access_token_comes_from(
    new_database_url: NewDatabaseUrl, command: str | None, how: str
) -> None:
    settings = {"sandbox_sign_in": False, "token_command": command}
    async with shop_of(new_database_url("orders"), **settings) as shop, shop.visitor(None) as visitor:
        assert how in await steps(visitor)
        assert ("make token &lt;x&gt;" in (await visitor.get("/session")).text) is (command is not None)


async def test_an_empty_shop_has_nothing_to_lead_through(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        page = (await orders.http.get("/shop/")).text
        assert "Nothing is on sale yet." in page
        assert "How to buy" not in page


def test_each_sample_has_a_small_picture_of_shapes_alone() -> None:
    pictures = {path.name: path.read_bytes() for path in PICTURES.iterdir()}
    assert pictures.keys() == {f"{product_id}.svg" for product_id in SAMPLE_CATALOGUE}
    for name, content in pictures.items():
        assert len(content) <= PICTURE_BYTES_MAX, name
        root = ElementTree.fromstring(content)
        assert (root.tag, root.get("viewBox")) == (f"{SVG}svg", "0 0 240 160")
        for element in root.iter():
            assert element.tag in ELEMENTS, name
            assert set(element.keys()) <= ATTRIBUTES, name


async def test_a_picture_is_kept_for_a_day_under_the_policy_of_the_pages(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor(None) as visitor:
        policy = (await visitor.get("/")).headers["Content-Security-Policy"]
        picture = await visitor.get("/static/products/tea.svg")
        again = await visitor.get("/static/products/tea.svg", If_None_Match=picture.headers["ETag"])
        assert (picture.status_code, again.status_code) == (200, 304)
        assert picture.headers["Content-Type"] == "image/svg+xml"
        for answer in (picture, again):
            assert answer.headers["Cache-Control"] == "public, max-age=86400"
            assert answer.headers["Content-Security-Policy"] == policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert (await visitor.get("/static/shop.css")).headers["Cache-Control"] == "private, no-cache"
        assert (await visitor.get("/static/products/none.svg")).status_code == 404

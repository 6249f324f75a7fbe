"""Who may open which page, where forms may come from, what cookies and headers say, and that a session ends."""

from __future__ import annotations

import httpx
import pytest

from orders.pages.testing_visitor import ROOT, shop_of
from servicekit.auth import ROLES
from servicekit.http.limits import RateLimit
from servicekit.testing.databases import NewDatabaseUrl

FOR_SIGNED_IN = ("/orders", "/orders/ghost", "/orders/ghost/events", "/operator", "/operator/orders/ghost")
FOR_OPERATORS = ("/operator", "/operator/orders/ghost", "/operator/dead-letters", "/operator/refunds")


async def test_who_is_not_signed_in_is_led_to_where_one_signs_in_and_back(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor(None) as nobody:
        for path in FOR_SIGNED_IN:
            answer = await nobody.get(path)
            assert answer.status_code == 303
            assert answer.headers["Location"] == f"/shop/session?next=%2Fshop{path.replace('/', '%2F')}"
        sent = await nobody.send("/orders/ghost/cancel")
        assert sent.headers["Location"] == "/shop/session?next=%2Fshop%2F"
        fields = {"subject": "ann", "role": "buyer", "next": "/shop/orders"}
        assert (await nobody.send("/session/sandbox", **fields)).headers["Location"] == "/shop/orders"


@pytest.mark.parametrize("role", ["buyer", "seller"])
async def test_each_role_reads_its_own_pages_and_no_others(new_database_url: NewDatabaseUrl, role: str) -> None:
    closed = FOR_OPERATORS if role == "buyer" else ("/operator/refunds",)
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("somebody", role) as visitor:
        for path in closed:
            answer = await visitor.get(path)
            assert (answer.status_code, "You may not do this." in answer.text) == (403, True), path
        if role == "seller":
            assert (await visitor.get("/operator")).status_code == 200
            assert (await visitor.send("/orders", items="seat:1", key="0" * 32)).status_code == 403


async def test_another_buyers_order_is_answered_as_one_that_does_not_exist(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("ann") as ann, shop.visitor("bob") as bob:
        order_id = await ann.order("seat")
        for wanted in (order_id, "ghost"):
            answers = [await bob.get(f"/orders/{wanted}"), await bob.get(f"/orders/{wanted}/events")]
            fields = {"method": "card", "key": "0" * 32}
            for act in ("cancel", "confirm", "pay"):
                answers.append(await bob.send(f"/orders/{wanted}/{act}", **(fields if act == "pay" else {})))
            for answer in answers:
                assert (answer.status_code, "There is no such order." in answer.text) == (404, True)
        assert order_id not in (await bob.get("/orders")).text


@pytest.mark.parametrize(
    ("headers", "is_taken"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "http://orders"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://orders"}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "http://orders:8080"}, False),
        ({"Origin": "null"}, False),
        ({}, False),
    ],
)
async def test_a_form_is_taken_from_pages_of_the_shop_only(
    new_database_url: NewDatabaseUrl, headers: dict[str, str], is_taken: bool
) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        order_id = await buyer.order("seat")
        answer = await buyer.http.post(f"{ROOT}/orders/{order_id}/cancel", headers=headers)
        assert answer.status_code == (303 if is_taken else 403)
        assert (await shop.orders.product("seat")).reserved == (0 if is_taken else 1)


async def test_nothing_is_changed_by_following_a_link(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        order_id = await buyer.order("seat")
        for path in (f"/orders/{order_id}/cancel", f"/orders/{order_id}/pay", "/cart/add", "/session/end"):
            answer = await buyer.get(path)
            assert (answer.status_code, "cannot be used in this way" in answer.text) == (405, True), path


@pytest.mark.parametrize(
    "next_path", ["https://evil.example/", "//evil.example", "/shop//evil.example", "/shop/\\evil", "/orders", ""]
)
async def test_signing_in_leads_to_no_other_site(new_database_url: NewDatabaseUrl, next_path: str) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor(None) as visitor:
        answer = await visitor.send("/session/sandbox", subject="ann", role="buyer", next=next_path)
        assert answer.headers["Location"] == "/shop/"


async def test_outside_a_sandbox_one_signs_in_with_a_token_that_is_valid(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders"), sandbox_sign_in=False) as shop, shop.visitor(None) as visitor:
        page = (await visitor.get("/session")).text
        assert "sandbox" not in page
        assert (await visitor.send("/session/sandbox", subject="ann", role="operator")).status_code == 403
        forged = await visitor.send("/session/token", token="ey.x.y")
        assert (forged.status_code, "Please sign in." in forged.text) == (401, True)
        token = shop.orders.application.tokens.issue("ann", ROLES["buyer"])
        assert (await visitor.send("/session/token", token=token)).status_code == 303
        assert (await visitor.get("/orders")).status_code == 200


async def test_a_session_ends_with_its_token_and_when_its_owner_says_so(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        await buyer.send("/cart/add", product_id="seat")
        await buyer.send("/session/end")
        assert (await buyer.get("/orders")).status_code == 303
        assert "Your cart is empty" in (await buyer.get("/cart")).text
        await buyer.sign_in()
        cookie = buyer.http.cookies["shop_session"]
        await shop.orders.clock.advance(3_700)
        assert (await buyer.get("/orders")).status_code == 303
        # The browser has dropped the cookie by itself; one that has not is told that the session is over.
        page = await buyer.http.get(f"{ROOT}/session", headers={"Cookie": f"shop_session={cookie}"})
        assert "Your session has expired." in page.text


async def test_the_session_cookie_is_for_the_shops_pages_alone(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop:
        transport = httpx.ASGITransport(shop.orders.application.api)
        fields, headers = {"subject": "ann", "role": "buyer"}, {"Sec-Fetch-Site": "same-origin"}
        for scheme in ("http", "https"):
            async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://orders") as http:
                answer = await http.post(f"{ROOT}/session/sandbox", data=fields, headers=headers)
                attributes = {part.strip().lower() for part in answer.headers["Set-Cookie"].split(";")}
                assert {"httponly", "samesite=lax", "path=/shop", "max-age=3600"} <= attributes
                assert ("secure" in attributes) == (scheme == "https")
                # The API looks at no cookie, so that no other site can make a browser ask anything of it.
                assert (await http.get("/orders")).status_code == 401


async def test_visitors_at_one_address_have_limits_of_their_own_once_signed_in(
    new_database_url: NewDatabaseUrl,
) -> None:
    limited = shop_of(new_database_url("orders"), rate_limit=RateLimit(4, 60))
    async with limited as shop, shop.visitor("ann") as ann, shop.visitor("bob") as bob, shop.visitor(None) as nobody:
        assert [(await ann.get("/orders")).status_code for _ in range(5)] == [200, 200, 200, 200, 429]
        assert (await bob.get("/orders")).status_code == 200
        # Signing in was asked by two from this address; a session that is none makes nobody somebody else.
        nobody.http.cookies.set("shop_session", "x", path="/shop")
        assert [(await nobody.get("/session")).status_code for _ in range(3)] == [200, 200, 429]


async def test_every_answer_of_the_pages_keeps_other_sites_out(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        for path in ("/", "/cart", "/nothing", "/static/shop.js", "/static/nothing.js"):
            answer = await buyer.get(path)
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "private, no-cache"
        page = (await buyer.get("/")).text
        assert "<style" not in page
        assert "style=" not in page
        assert "onclick" not in page


async def test_the_pages_are_in_no_api_document(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop:
        paths = (await shop.orders.http.get("/openapi.json")).json()["paths"]
        assert "/orders/{order_id}/events" in paths
        assert not [path for path in paths if path == "/" or path.startswith("/shop")]
        for path in ("/", "/shop"):
            answer = await shop.orders.http.get(path)
            assert (answer.status_code, answer.headers["Location"]) == (307, "/shop/")


async def test_a_language_that_was_chosen_is_remembered_and_the_page_stays(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        assert "<h1>Products</h1>" in (await buyer.get("/", Accept_Language="en, zh;q=0.5")).text
        chosen = await buyer.get("/orders?cursor=&lang=zh")
        assert '<html lang="zh-CN">' in chosen.text
        assert "<h1>商品</h1>" in (await buyer.get("/", Accept_Language="en")).text
        page = (await buyer.get("/?cursor=c2VhdA")).text
        assert 'href="/shop/?cursor=c2VhdA&amp;lang=en"' in page

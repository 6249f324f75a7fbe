"""A buyer at the shop's pages, without a script: cart, order, paying, cancelling, confirming."""

from __future__ import annotations

import asyncio

import pytest

from orders.domain.order import OrderStatus
from orders.domain.product import Product
from orders.pages.testing_visitor import shop_of
from orders.service.payments import OrderToPay, PaymentRejectedError, PaymentView
from orders.testing import BUYER
from servicekit.auth import Caller
from servicekit.http.limits import AdmissionLimit
from servicekit.testing.databases import NewDatabaseUrl


@pytest.mark.mechanism("X2")
async def test_a_buyer_fills_a_cart_orders_pays_and_confirms(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        products = (await buyer.get("/")).text
        assert "¥158.00" in products
        assert "10 in stock" in products
        assert "Only 3 left" in products
        await buyer.send("/cart/add", product_id="seat", quantity="2")
        await buyer.send("/cart/add", product_id="snack", quantity="1")
        await buyer.send("/cart/update", product_id=["seat", "snack"], quantity=["1", "2"])
        cart = (await buyer.get("/cart")).text
        assert "¥183.00" in cart
        assert "Rice &amp; &lt;beans&gt;" in cart
        placed = await buyer.send("/orders", **await buyer.form("/cart", "/orders"))
        order_url = placed.headers["Location"].removeprefix("/shop")
        assert "Your cart is empty" in (await buyer.get("/cart")).text
        await shop.orders.clock.advance(1_240)
        page = (await buyer.get(order_url)).text
        assert "¥183.00" in page
        assert ">09:20<" in page
        assert "Bank card or credit card" in page
        paid = await buyer.send(f"{order_url}/pay", method="wallet", **await buyer.form(order_url, f"{order_url}/pay"))
        assert paid.headers["Location"] == f"/shop{order_url}"
        assert "nothing has been taken yet" in (await buyer.get(order_url)).text
        order = await shop.orders.order(order_url.rpartition("/")[2])
        await shop.orders.application.use_cases.hold_order.take(order.order_id, "payment-1", BUYER)
        assert "Your payment is in progress" in (await buyer.get(order_url)).text
        await shop.orders.pay_and_ship(order)
        assert "on its way" in (await buyer.get(order_url)).text
        await buyer.send(f"{order_url}/confirm")
        assert "Received. Thank you!" in (await buyer.get(order_url)).text
        (payment,) = shop.orders.desk.payments.values()
        assert (payment.order_id, payment.amount_minor, payment.method) == (order.order_id, 18300, "wallet")
        assert {caller.subject for caller in shop.orders.desk.callers} == {"buyer-1"}


async def test_buyers_who_wait_for_a_hung_gateway_keep_no_others_from_ordering(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = AdmissionLimit(4, 500)
    async with shop_of(new_database_url("orders"), admission_limit=limit) as shop, shop.visitor() as buyer:
        orders = [await buyer.order("seat") for _ in range(limit.per_kind)]
        pay, waiting, answers = shop.orders.desk.pay, asyncio.Semaphore(0), asyncio.Event()

        async def hang(caller: Caller, order: OrderToPay, method: str, key: str) -> PaymentView:
            waiting.release()
            await answers.wait()
            return await pay(caller, order, method, key)

        monkeypatch.setattr(shop.orders.desk, "pay", hang)
        paying = [
            asyncio.create_task(buyer.send(f"/orders/{order_id}/pay", method="card", key=order_id))
            for order_id in orders
        ]
        for _ in orders:
            await waiting.acquire()
        ordering = asyncio.create_task(shop.orders.post_order("k", "buyer-2"))
        await shop.orders.clock.advance(1)
        assert (await ordering).status_code == 201
        answers.set()
        assert [(await one).status_code for one in paying] == [303] * len(orders)


async def test_two_clicks_at_once_make_one_order(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        await buyer.send("/cart/add", product_id="seat")
        form = await buyer.form("/cart", "/orders")
        first_is_halfway, may_go_on = asyncio.Event(), asyncio.Event()

        async def pause(_transaction_id: str) -> None:
            first_is_halfway.set()
            await may_go_on.wait()

        shop.orders.publisher.before_local = pause
        first = asyncio.create_task(buyer.send("/orders", **form))
        await first_is_halfway.wait()
        second = asyncio.create_task(buyer.send("/orders", **form))
        while not shop.orders.clock.timers:  # until the second one waits for the first  # noqa: ASYNC110
            await asyncio.sleep(0)
        may_go_on.set()
        placed = await first
        await shop.orders.clock.advance(1)
        assert (placed.status_code, placed.headers["Location"]) == (303, (await second).headers["Location"])
        assert (await shop.orders.product("seat")).reserved == 1
        again = await buyer.send("/orders", **form)  # the way back, and the button once more
        assert again.headers["Location"] == placed.headers["Location"]


async def test_the_last_seat_goes_to_one_and_the_other_reads_that_it_is_gone(new_database_url: NewDatabaseUrl) -> None:
    async with (
        shop_of(new_database_url("orders")) as shop,
        shop.visitor("ann") as ann,
        shop.visitor("bob") as bob,
    ):
        await shop.orders.add_product(Product("last", "The last seat", 15800, "CNY", available=1))
        forms = []
        for visitor in (ann, bob):
            await visitor.send("/cart/add", product_id="last")
            forms.append(await visitor.form("/cart", "/orders"))
        answers = await asyncio.gather(ann.send("/orders", **forms[0]), bob.send("/orders", **forms[1]))
        won, lost = sorted(answers, key=lambda answer: answer.status_code)
        assert (won.status_code, lost.status_code) == (303, 409)
        assert "somebody was faster. The last seat is sold out." in lost.text
        assert "Sold out" in (await ann.get("/")).text


async def test_an_order_that_is_cancelled_or_expires_says_why(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        cancelled, expired = await buyer.order("seat"), await buyer.order("seat")
        assert (await buyer.send(f"/orders/{cancelled}/cancel")).status_code == 303
        await shop.orders.pass_payment_window()
        assert "The order is being closed." in (await buyer.get(f"/orders/{expired}")).text
        await shop.orders.deliver()
        await shop.orders.deliver()
        assert "Cancelled by the buyer. Nothing was paid" in (await buyer.get(f"/orders/{cancelled}")).text
        page = (await buyer.get(f"/orders/{expired}", Accept_Language="zh")).text
        assert "超时未付款。 没有付款，商品已重新上架。" in page
        assert "data-events" not in page
        late = await buyer.send(f"/orders/{expired}/cancel")
        assert late.status_code == 409
        assert "no longer possible" in late.text
        assert f'href="/shop/orders/{expired}"' in late.text


async def test_a_declined_payment_is_said_and_can_be_tried_again(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        url = f"/orders/{await buyer.order('seat')}"
        shop.orders.desk.decides = "DECLINED"
        answer = await buyer.send(f"{url}/pay", method="card", **await buyer.form(url, f"{url}/pay"))
        assert answer.status_code == 303
        assert "was declined: insufficient-funds" in (await buyer.get(url)).text
        shop.orders.desk.decides = "CAPTURED"
        await buyer.send(f"{url}/pay", method="card", **await buyer.form(url, f"{url}/pay"))
        assert "Your payment is in progress" in (await buyer.get(url)).text  # the order learns of it in a moment


async def test_while_payments_is_away_the_order_is_there_and_paying_says_so(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        url = f"/orders/{await buyer.order('seat')}"
        form = await buyer.form(url, f"{url}/pay")
        shop.orders.desk.is_away = True
        page = await buyer.get(url)
        assert page.status_code == 200
        assert "cannot be made at this moment" in page.text
        assert "Cancel the order" in page.text
        rejected = await buyer.send(f"{url}/pay", method="card", **form)
        assert rejected.status_code == 503
        assert rejected.headers["Retry-After"] == "1"
        assert "Payments do not answer" in rejected.text


async def test_what_payments_rejects_is_told_in_the_buyers_language(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        url = f"/orders/{await buyer.order('seat')}"
        form = await buyer.form(url, f"{url}/pay")
        shop.orders.desk.rejects_with = PaymentRejectedError("order-closed", 409, "the order is closed")
        await buyer.get("/?lang=zh")
        known = await buyer.send(f"{url}/pay", method="card", **form)
        assert known.status_code == 409
        assert "该订单已不能付款。" in known.text
        shop.orders.desk.rejects_with = PaymentRejectedError("moon-phase", 422, "not on a full moon")
        other = await buyer.send(f"{url}/pay", method="card", **form)
        assert other.status_code == 422
        assert "付款被拒绝。" in other.text
        assert "not on a full moon" in other.text


@pytest.mark.parametrize(
    ("path", "fields", "sentence"),
    [
        ("/cart/update", {"product_id": ["seat"], "quantity": ["many"]}, "The request is not valid."),
        ("/cart/add", {"product_id": "seat", "quantity": "0"}, "The request is not valid."),
        ("/cart/add", {"product_id": "../x"}, "The request is not valid."),
        ("/orders", {"items": "///", "key": "0" * 32}, "The request is not valid."),
        ("/orders", {"items": "seat:1", "key": "short"}, "The request is not valid."),
        ("/orders", {"items": "ghost:1", "key": "0" * 32}, "There is no such product."),
        ("/orders", {"items": "seat:1|import:1", "key": "0" * 32}, "One order has one currency."),
        ("/orders/ghost/pay", {"method": "card", "key": "0" * 32}, "There is no such order."),
    ],
)
async def test_a_form_that_makes_no_sense_is_rejected_readably(
    new_database_url: NewDatabaseUrl, path: str, fields: dict[str, str | list[str]], sentence: str
) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        answer = await buyer.send(path, **fields)
        assert 400 <= answer.status_code < 500
        assert f"<h1>{sentence}</h1>" in answer.text
        assert answer.headers["Content-Type"].startswith("text/html")


async def test_a_way_to_pay_that_there_is_not_is_rejected(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        url = f"/orders/{await buyer.order('seat')}"
        answer = await buyer.send(f"{url}/pay", method="shells", key="0" * 32)
        assert answer.status_code == 422
        assert "no such way to pay" in answer.text
        assert not shop.orders.desk.payments


async def test_a_cart_says_what_cannot_be_ordered(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        await buyer.send("/cart/add", product_id="snack", quantity="9")
        await buyer.send("/cart/add", product_id="ghost")
        page = (await buyer.get("/cart")).text
        assert "Only 3 are left." in page
        assert "no longer on sale" in page
        assert "<button disabled>Place" in page
        await buyer.send("/cart/remove", product_id="ghost")
        await buyer.send("/cart/update", product_id="snack", quantity="2")
        assert "<button>Place" in (await buyer.get("/cart")).text


async def test_own_orders_are_listed_in_pages_newest_first(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        await shop.orders.add_product(Product("many", "Many", 100, "CNY", available=100))
        placed = []
        for number in range(23):
            placed.append((await shop.orders.place(f"k{number}", product_id="many")).order_id)
            await shop.orders.clock.advance(1)
        await shop.orders.place("other", buyer_id="buyer-2")
        first = (await buyer.get("/orders")).text
        cursor = first.partition("?cursor=")[2].partition('"')[0]
        second = (await buyer.get(f"/orders?cursor={cursor}")).text
        shown = [[one for one in reversed(placed) if one in page] for page in (first, second)]
        assert shown == [placed[:2:-1], placed[2::-1]]
        assert first.count('class="card"') == 20
        assert 'rel="next"' not in second
        assert (await buyer.get("/orders?cursor=nonsense")).status_code == 422


async def test_the_status_of_each_step_is_what_the_order_says(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        order = await shop.orders.order(await buyer.order("seat"))
        seen = []
        for act in (lambda: shop.orders.pay(order), lambda: shop.orders.pay_and_ship(order)):
            await act()
            page = (await buyer.get(f"/orders/{order.order_id}?lang=zh")).text
            seen.append(page.partition('aria-current="step">')[2].partition("<")[0])
        assert seen == ["待发货", "已发货"]
        assert (await shop.orders.order(order.order_id)).status is OrderStatus.SHIPPED

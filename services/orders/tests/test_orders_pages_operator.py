"""The operator's view: orders by state, one order's history and money, dead letters, refunds."""

from __future__ import annotations

from dataclasses import replace

from orders.domain.order import Order
from orders.pages.testing_visitor import Shop, shop_of
from orders.service.payments import OrderToPay, PaymentRejectedError
from orders.service.queries import DeadLetterView
from orders.testing import BUYER
from servicekit.testing.databases import NewDatabaseUrl

TRACE_URL = "http://traces.example/trace/{trace_id}"
LETTER = DeadLetterView(
    "order-timeout-handler", "7F00000100002A9F0000000000000001", "order-timeouts", "expire", ("o-1",), "{<x>}", 1
)


async def paid_order(shop: Shop, key: str = "k") -> Order:
    """An order that is paid, at the desk as in the database."""
    order = await shop.orders.place(key)
    shop.orders.desk.decides = "CAPTURED"
    payment = await shop.orders.desk.pay(
        BUYER, OrderToPay(order.order_id, order.total_minor, order.currency), "card", key
    )
    await shop.orders.pay(order, payment.payment_id)
    return await shop.orders.order(order.order_id)


async def test_orders_are_counted_by_state_and_filtered(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("op", "operator") as operator:
        pending, paid = await shop.orders.place("a"), await paid_order(shop, "b")
        await shop.orders.clock.advance(86_400)
        await operator.sign_in("op", "operator")  # nobody's session lasts for a day
        other = await shop.orders.place("c", buyer_id="buyer-2")
        page = (await operator.get("/operator")).text
        for status, count in (("PENDING_PAYMENT", 2), ("AWAITING_SHIPMENT", 1), ("SHIPPED", 0), ("CLOSED", 0)):
            assert f'data-state="{status}"><span class="figure">{count}</span>' in page
        day = "2023-11-14"  # the simulated clock's first one
        for query, shown in (
            ("", {pending, paid, other}),
            ("?status=AWAITING_SHIPMENT", {paid}),
            ("?buyer=buyer-2&status=", {other}),
            (f"?from={day}&until={day}", {pending, paid}),
            ("?from=2023-11-15", {other}),
        ):
            text = (await operator.get(f"/operator{query}")).text
            assert {order for order in (pending, paid, other) if order.order_id in text} == shown, query
        for wrong in ("?status=LOST", "?from=yesterday", "?cursor=x"):
            assert (await operator.get(f"/operator{wrong}")).status_code == 422
        found = await operator.get(f"/operator/find?order_id=%20{paid.order_id}")
        assert found.headers["Location"] == f"/shop/operator/orders/{paid.order_id}"


async def test_one_orders_history_names_who_why_when_and_its_trace(new_database_url: NewDatabaseUrl) -> None:
    async with (
        shop_of(new_database_url("orders"), trace_url=TRACE_URL) as shop,
        shop.visitor("op", "operator") as operator,
    ):
        order = await paid_order(shop)
        url = f"/operator/orders/{order.order_id}"
        form = await operator.form(url, f"{url}/ship")
        assert (await operator.send(f"{url}/ship", **form)).status_code == 303
        page = (await operator.get(url)).text
        for text in ("by buyer-1", "by order-payment-handler", "by op", "Placed", "Paid", "Shipped", "¥158.00"):
            assert text in page
        history = await shop.orders.history(order.order_id)
        traces = [change.trace_id for change in history if change.trace_id]
        for trace_id in traces:
            assert f'href="{TRACE_URL.format(trace_id=trace_id)}"' in page


async def test_what_an_operator_has_not_seen_is_not_decided_by_him(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("op", "operator") as operator:
        order = await shop.orders.place("k")
        url = f"/operator/orders/{order.order_id}"
        form = await operator.form(url, f"{url}/cancel")
        await shop.orders.pay(order)
        answer = await operator.send(f"{url}/cancel", **form)
        assert (answer.status_code, "has changed since you looked" in answer.text) == (412, True)
        assert (await shop.orders.order(order.order_id)).payment_id is not None
        form = await operator.form(url, f"{url}/cancel")
        assert (await operator.send(f"{url}/cancel", **form)).status_code == 303
        assert "Cancelled by the seller" in (await operator.get(url)).text
        assert "Nothing is left to do." in (await operator.get(url)).text


async def test_money_goes_back_in_parts_and_once_for_each_form(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("op", "operator") as operator:
        order = await paid_order(shop)
        url = f"/operator/orders/{order.order_id}"
        form = await operator.form(url, f"{url}/refund")
        for _ in range(2):
            answer = await operator.send(f"{url}/refund", amount="58.00", reason="late", **form)
            assert answer.status_code == 303
        page = (await operator.get(url)).text
        assert "¥58.00 of ¥158.00 given back" in page
        assert 'value="100.00"' in page
        form = await operator.form(url, f"{url}/refund")
        for amount, status, sentence in (
            ("100.01", 422, "more than is left"),
            ("1,5", 422, "That is not an amount."),
            ("-1", 422, "That is not an amount."),
        ):
            rejected = await operator.send(f"{url}/refund", amount=amount, reason="late", **form)
            assert (rejected.status_code, sentence in rejected.text) == (status, True), amount
        other = await operator.send(f"{url}/refund", **form | {"payment_id": "payment-9", "amount": "1", "reason": "x"})
        assert other.status_code == 404
        (refund,) = shop.orders.desk.all_refunds.values()
        listed = (await operator.get("/operator/refunds")).text
        assert refund.refund_id in listed
        assert "¥58.00" in listed
        assert "by op" in listed
        led = await operator.get(f"/operator/payments/{refund.payment_id}")
        assert led.headers["Location"] == f"/shop{url}"


async def test_a_seller_ships_and_sees_no_money(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("sal", "seller") as seller:
        order = await paid_order(shop)
        url = f"/operator/orders/{order.order_id}"
        page = (await seller.get(url)).text
        assert "You may not see payments." in page
        assert "payment-1" not in page
        assert "Ship</button>" in page
        fields = {"payment_id": "payment-1", "amount": "1", "reason": "x", "key": "0" * 32}
        assert (await seller.send(f"{url}/refund", **fields)).status_code == 403


async def test_an_operator_sees_the_order_while_payments_and_queue_are_away(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("op", "operator") as operator:
        order = await paid_order(shop)
        shop.orders.desk.is_away = shop.orders.dead_letters.is_away = True
        page = await operator.get(f"/operator/orders/{order.order_id}")
        assert page.status_code == 200
        assert "Payments does not answer" in page.text
        refunds, letters = await operator.get("/operator/refunds"), await operator.get("/operator/dead-letters")
        assert (refunds.status_code, "Payments do not answer." in refunds.text) == (503, True)
        assert (letters.status_code, "queue does not answer" in letters.text) == (503, True)
        assert 'href="/shop/operator/refunds">Try again' in refunds.text


async def test_dead_letters_are_shown_and_delivered_again_once(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("op", "operator") as operator:
        shop.orders.dead_letters.letters.append(LETTER)
        page = (await operator.get("/operator/dead-letters")).text
        assert "order-timeouts / expire" in page
        assert "{&lt;x&gt;}" in page
        assert 'href="/shop/operator/orders/o-1"' in page
        form = await operator.form("/operator/dead-letters", "/operator/dead-letters/replay")
        assert (await operator.send("/operator/dead-letters/replay", **form)).status_code == 303
        assert shop.orders.dead_letters.replayed == [LETTER]
        again = await operator.send("/operator/dead-letters/replay", **form)
        assert (again.status_code, "dealt with this dead letter already" in again.text) == (404, True)


async def test_who_may_not_give_money_back_delivers_no_dead_letter_again(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("sal", "seller") as visitor:
        shop.orders.dead_letters.letters.append(LETTER)
        assert "Deliver again" not in (await visitor.get("/operator/dead-letters")).text
        fields = {"group": LETTER.group, "letter_id": LETTER.letter_id}
        assert (await visitor.send("/operator/dead-letters/replay", **fields)).status_code == 403


async def test_rejected_refunds_are_shown_with_their_reason_and_tried_again(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("op", "operator") as operator:
        order = await paid_order(shop)
        url = f"/operator/orders/{order.order_id}"
        form = await operator.form(url, f"{url}/refund")
        await operator.send(f"{url}/refund", amount="58.00", reason="late", **form)
        assert "has rejected no refund" in (await operator.get("/operator/refunds?status=FAILED")).text
        ((key, refund),) = shop.orders.desk.all_refunds.items()
        failed = replace(refund, status="FAILED", refunded_at_ms=None, failure="the account is <closed>")
        shop.orders.desk.all_refunds[key] = failed
        for page in (url, "/operator/refunds", "/operator/refunds?status=FAILED"):
            text = (await operator.get(page)).text
            assert "Rejected by the gateway" in text, page
            assert "the account is &lt;closed&gt;" in text, page
            form = await operator.form(page, "/operator/refunds/retry")
        shop.orders.desk.rejects_with = PaymentRejectedError("refund-failed", 409, "the account is closed")
        rejected = await operator.send("/operator/refunds/retry", **form)
        assert (rejected.status_code, "has rejected the refund" in rejected.text) == (409, True)
        shop.orders.desk.rejects_with = None
        for _ in range(2):
            answer = await operator.send("/operator/refunds/retry", **form)
            assert answer.headers["Location"] == "/shop/operator/refunds?status=FAILED"
        assert "Try again" not in (await operator.get("/operator/refunds")).text
        assert (await operator.get("/operator/refunds?status=LOST")).status_code == 422


async def test_who_may_not_give_money_back_tries_no_refund_again(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor("sal", "seller") as seller:
        fields = {"payment_id": "payment-1", "refund_id": "refund-1"}
        assert (await seller.send("/operator/refunds/retry", **fields)).status_code == 403

"""The shop's pages in a real browser against real processes: name server, broker, gateway, payments, orders.

Mechanisms X1, X2, X3. A buyer has PAYMENT_WINDOW to pay. Screenshots of each story are kept: browser_people.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from browser_people import DESK, PATIENCE_MS, PHONE, Person, a_browser
from browser_stage import Stage, a_stage
from playwright.async_api import expect

from hourglass_local.shop import Shop

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

PAYMENT_WINDOW = "20s"
CLOSING_MS = 40_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with a_browser() as browser, a_stage(browser, tmp_path_factory.mktemp("browser"), PAYMENT_WINDOW) as stage:
        yield stage


@pytest.mark.mechanism("X2")
async def test_a_buyer_sees_the_time_run_down_pays_and_the_page_turns_to_paid_by_itself(stage: Stage) -> None:
    await stage.sell("seat-12A", "Seat 12A, train G7", 5)
    async with stage.person() as ann:
        await ann.sign_in("ann")
        await ann.picture("products-en")
        await ann.put_into_cart("seat-12A", 2)
        await ann.picture("cart-en")
        await ann.place_button().click()
        order_id = await ann.order_id()
        remaining = ann.page.locator("#remaining")
        await expect(ann.page.locator(".amount")).to_have_text("¥316.00")
        await expect(remaining).to_have_text(re.compile("^00:(20|1[0-9])$"))
        before = await remaining.inner_text()
        await expect(remaining).not_to_have_text(before)  # and without a request to the server
        assert await remaining.inner_text() < before
        await ann.picture("order-pending-en")
        other_tab = Person(await ann.page.context.new_page(), stage.artefacts)
        await other_tab.open(f"/orders/{order_id}")
        await other_tab.expect_status("PENDING_PAYMENT")
        await other_tab.mark()
        await ann.page.get_by_label("Wallet").check()
        await ann.page.get_by_role("button", name="Pay ¥316.00").click()
        await ann.expect_status("AWAITING_SHIPMENT")
        await expect(ann.page.get_by_role("heading", level=1)).to_have_text("Paid. We are preparing your order.")
        await other_tab.expect_status("AWAITING_SHIPMENT")
        await other_tab.expect_same_page()
        await expect(other_tab.page.locator("#announcer")).to_have_text("Awaiting shipment")
        await expect(other_tab.page).to_have_title(re.compile("^Awaiting shipment"))
        await ann.picture("order-paid-en")


@pytest.mark.mechanism("X3", "U5")
async def test_an_order_closes_before_its_buyers_eyes_and_the_seat_is_on_sale_again(stage: Stage) -> None:
    await stage.sell("seat-1", "座位 1", 1)
    async with stage.person(language="zh-CN") as li:
        await li.sign_in("li")
        await li.order("seat-1")
        await expect(li.page.get_by_role("heading", level=1)).to_contain_text("请在 20 秒内尽快付款")
        await li.mark()
        await li.picture("order-pending-zh")
        await expect(li.page.locator("#order")).to_have_attribute("data-status", "CLOSED", timeout=CLOSING_MS)
        await li.expect_same_page()
        await expect(li.page.get_by_role("heading", level=1)).to_have_text("订单已关闭。")
        await expect(li.page.locator(".state")).to_contain_text("超时未付款")
        await expect(li.page.locator("form.pay")).to_have_count(0)
        await li.picture("order-closed-zh")
        await li.open("/")
        await expect(li.page.locator('[data-product="seat-1"] .stock')).to_have_text("仅剩 1 件")


async def test_two_browsers_race_for_the_last_seat_and_the_loser_reads_that_it_is_gone(stage: Stage) -> None:
    await stage.sell("last-seat", "The last seat", 1)
    async with stage.person() as ann, stage.person() as bob:
        people = {"racer-ann": ann, "racer-bob": bob}
        for name, person in people.items():
            await person.sign_in(name)
            await person.put_into_cart("last-seat")
        await asyncio.gather(*(person.place_button().click() for person in people.values()))
        for person in people.values():
            await expect(person.page.locator("#order, .problem")).to_be_visible()
        lost = [person for person in people.values() if await person.page.locator(".problem").count()]
        assert len(lost) == 1
        won = next(person for person in people.values() if person not in lost)
        await won.expect_status("PENDING_PAYMENT")
        (loser,) = lost
        await expect(loser.page.get_by_role("heading", level=1)).to_contain_text("somebody was faster")
        await expect(loser.page.locator("#trace-id")).to_have_text(re.compile("^[0-9a-f]{32}$"))
        await loser.picture("last-seat-gone-en")


async def test_a_phone_and_the_keyboard_alone_are_enough_to_buy(stage: Stage) -> None:
    await stage.sell("snack", "车上小吃", 50)
    async with stage.person(language="zh-CN", **PHONE) as wang:
        await wang.open("/session")
        await wang.expect_to_fit()
        await wang.tab_to(wang.page.locator('input[name="subject"]'))
        await wang.page.keyboard.type("wang")
        await wang.page.keyboard.press("Enter")
        await expect(wang.page.locator(".subject")).to_have_text("wang")
        await wang.expect_to_fit()
        await wang.tab_to(wang.page.locator('[data-product="snack"] button'))
        await wang.page.keyboard.press("Enter")
        await expect(wang.page).to_have_url(re.compile("/shop/cart$"))
        await wang.expect_to_fit()
        await wang.picture("cart-phone-zh")
        await wang.tab_to(wang.place_button())
        await wang.page.keyboard.press("Enter")
        await wang.order_id()
        await wang.expect_to_fit()
        await wang.picture("order-pending-phone-zh")
        await wang.tab_to(wang.page.locator('input[name="method"]').first)
        await wang.page.keyboard.press("ArrowDown")
        await expect(wang.page.get_by_label("第三方支付平台")).to_be_checked()
        await wang.tab_to(wang.page.get_by_role("button", name="支付 ¥158.00"))
        await wang.page.keyboard.press("Enter")
        await wang.expect_status("AWAITING_SHIPMENT")
        await wang.expect_to_fit()
        await wang.picture("order-paid-phone-zh")


async def test_an_operator_ships_refunds_a_part_and_the_buyer_confirms(stage: Stage) -> None:
    await stage.sell("berth", "Berth 3", 5)
    async with stage.person() as ann, stage.person(language="zh-CN", **DESK, color_scheme="dark") as zhao:
        await ann.sign_in("ann-of-berth")
        order_id = await ann.order("berth")
        await ann.page.locator("form.pay button").click()
        await ann.expect_status("AWAITING_SHIPMENT")
        await ann.mark()
        await zhao.sign_in("zhao", "operator")
        await zhao.open("/operator")
        await expect(zhao.page.locator('[data-state="AWAITING_SHIPMENT"] .figure')).not_to_have_text("0")
        await zhao.picture("operator-zh")
        await zhao.page.locator(f'a[href$="/operator/orders/{order_id}"]').click()
        await zhao.page.get_by_role("button", name="发货").click()
        await ann.expect_status("SHIPPED")
        await ann.expect_same_page()
        await ann.page.get_by_role("button", name="I have received it").click()
        await ann.expect_status("COMPLETED")
        await zhao.page.locator('input[name="amount"]').fill("58")
        await zhao.page.locator('form[action$="/refund"] button').click()
        await expect(zhao.page.locator(".payment")).to_contain_text("¥58.00")
        for word in ("提交订单", "付款成功", "卖家发货", "买家确认收货", "操作者：zhao", "操作者：ann-of-berth"):
            await expect(zhao.page.locator(".timeline")).to_contain_text(word)
        await zhao.picture("operator-order-zh")
        await zhao.open("/operator/refunds")
        await expect(zhao.page.locator("tbody tr").first).to_contain_text("¥58.00")
        await zhao.open("/operator/dead-letters")
        await expect(zhao.page.locator("[data-group]")).to_have_count(8)
        await zhao.picture("dead-letters-zh")


async def test_a_double_click_makes_one_order(stage: Stage) -> None:
    await stage.sell("pair", "A pair", 10)
    async with stage.person() as ann:
        await ann.sign_in("double-ann")
        await ann.put_into_cart("pair")
        await ann.place_button().dblclick()
        await ann.order_id()
        await ann.open("/orders")
        await expect(ann.page.locator(".orders li")).to_have_count(1)


async def test_without_scripts_a_buyer_pays_all_the_same(stage: Stage) -> None:
    await stage.sell("plain", "A plain seat", 10)
    async with stage.person(java_script_enabled=False) as ann:
        await ann.sign_in("plain-ann")
        order_id = await ann.order("plain")
        await expect(ann.page.locator("#remaining")).to_have_text(re.compile("^00:(20|1[0-9])$"))
        await ann.page.locator("form.pay button").click()
        await expect(ann.page.locator("#order, .progress").first).to_be_visible()
        for _ in range(PATIENCE_MS // 1000):  # the page says itself when it is to be looked at again
            if await ann.page.locator("#order").get_attribute("data-status") == "AWAITING_SHIPMENT":
                break
            await ann.page.wait_for_event("load")
        await ann.expect_status("AWAITING_SHIPMENT")
        await ann.page.get_by_role("link", name="中文").click()
        await expect(ann.page.get_by_role("heading", level=1)).to_have_text("已付款，我们正在为您备货。")
        assert ann.page.url.endswith(f"/shop/orders/{order_id}?lang=zh")


async def test_a_page_finds_its_way_back_when_orders_is_started_again(stage: Stage) -> None:
    """And orders stops in an orderly way although a page follows an order for as long as it goes on."""
    await stage.sell("patient", "A seat for the patient", 10)
    async with stage.person() as ann:
        await ann.sign_in("patient-ann")
        order_id = await ann.order("patient")
        await expect(ann.page.locator("#remaining")).to_be_visible()
        await ann.mark()
        orders = stage.cluster.orders
        await orders.terminate()
        assert (orders.exit_code, orders.was_killed_to_stop) == (0, False)
        await expect(ann.page.locator("#offline")).to_be_visible()
        ann.complaints.clear()  # the browser says that nothing answers, and it is right
        await orders.start()
        await expect(ann.page.locator("#offline")).to_be_hidden(timeout=PATIENCE_MS)
        async with Shop(stage.cluster.orders_url, stage.cluster.badges) as shop:
            await shop.cancel_as_seller(order_id)
        await ann.expect_status("CLOSED")
        await ann.expect_same_page()
        ann.complaints.clear()

"""The open page of an order while its server answers badly, slowly or not at all.

Whatever an answer says that is not about the order, the page keeps what it shows, says that it is offline, and asks
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from browser_people import PATIENCE_MS, Person, a_browser
from browser_stage import Stage, a_stage
from playwright.async_api import Route, expect

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

# What the page's stream has told it last, for a test that has to wait until the page has heard of something.
HEAR = """
    window.EventSource = class extends EventSource {
        constructor(url) {
            super(url);
            this.addEventListener("order", (event) => {
                document.documentElement.dataset.told = JSON.parse(event.data).order.status;
            });
        }
    };
"""
OUR_503 = '<title>x</title><article class="problem"><h1>The shop cannot reach its database.</h1></article>'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with a_browser() as browser, a_stage(browser, tmp_path_factory.mktemp("browser"), "2m") as stage:
        yield stage


@asynccontextmanager
async def an_open_order(stage: Stage, name: str) -> AsyncIterator[tuple[Person, str]]:
    """A buyer at the page of an order that waits for its payment, and the order's id."""
    await stage.sell(name, name, 5)
    async with stage.person() as ann:
        await ann.page.add_init_script(HEAR)
        await ann.sign_in(name)
        order_id = await ann.order(name)
        await expect_told(ann, "PENDING_PAYMENT")
        await ann.mark()
        yield ann, order_id
        ann.complaints.clear()  # the browser says what the answers were, and it is right


async def expect_told(person: Person, status: str) -> None:
    await expect(person.page.locator("html")).to_have_attribute("data-told", status)


async def pay_in_another_tab(ann: Person, order_id: str) -> None:
    tab = Person(await ann.page.context.new_page(), ann.artefacts)
    await tab.open(f"/orders/{order_id}")
    await tab.page.locator("form.pay button").click()
    await tab.expect_status("AWAITING_SHIPMENT")


@pytest.mark.parametrize(
    ("name", "status", "body"),
    [
        ("no-database", 503, OUR_503),
        ("no-backend", 502, "<h1>502 Bad Gateway</h1>"),
        ("no-route", 404, "default backend - 404"),
        ("too-many", 429, OUR_503),
        ("captive", 200, "<h1>Welcome to the hotel</h1>"),
    ],
)
async def test_an_answer_that_says_nothing_of_the_order_leaves_the_page_as_it_is(
    stage: Stage, name: str, status: int, body: str
) -> None:
    async with an_open_order(stage, name) as (ann, order_id):
        asked = asyncio.Semaphore(0)

        async def answer_badly(route: Route) -> None:
            asked.release()
            await route.fulfill(status=status, body=body, content_type="text/html")

        await ann.page.route(f"**/shop/orders/{order_id}", answer_badly)
        await pay_in_another_tab(ann, order_id)
        for _ in range(2):
            await asyncio.wait_for(asked.acquire(), PATIENCE_MS / 1000)
        await expect(ann.page.locator("#offline")).to_be_visible()
        await ann.expect_status("PENDING_PAYMENT")
        await expect(ann.page.locator("#remaining")).to_be_visible()
        await ann.page.unroute(f"**/shop/orders/{order_id}")
        await ann.expect_status("AWAITING_SHIPMENT")
        await expect(ann.page.locator("#offline")).to_be_hidden()
        await ann.expect_same_page()


async def test_a_stream_that_is_rejected_is_asked_for_again(stage: Stage) -> None:
    async with an_open_order(stage, "rejected-stream") as (ann, order_id):
        await ann.page.route("**/events", lambda route: route.fulfill(status=503, body="busy"))
        await ann.page.reload()
        await expect(ann.page.locator("#offline")).to_be_visible()
        await ann.mark()
        await ann.page.unroute("**/events")
        await expect(ann.page.locator("#offline")).to_be_hidden()
        await pay_in_another_tab(ann, order_id)
        await ann.expect_status("AWAITING_SHIPMENT")
        await ann.expect_same_page()


@pytest.mark.mechanism("X2")
async def test_a_change_that_comes_while_the_page_is_fetched_is_shown(stage: Stage) -> None:
    async with an_open_order(stage, "two-changes") as (ann, order_id):
        is_held, goes_on = asyncio.Event(), asyncio.Event()

        async def hold_first(route: Route) -> None:
            answer = await route.fetch()
            if not is_held.is_set() and "AWAITING_SHIPMENT" in await answer.text():
                is_held.set()
                await goes_on.wait()
            await route.fulfill(response=answer)

        await ann.page.route(f"**/shop/orders/{order_id}", hold_first)
        await pay_in_another_tab(ann, order_id)
        await asyncio.wait_for(is_held.wait(), PATIENCE_MS / 1000)
        await stage.ship(order_id)
        await expect_told(ann, "SHIPPED")
        goes_on.set()
        await ann.expect_status("SHIPPED")
        await ann.expect_same_page()


async def test_a_visitor_without_a_session_is_led_to_the_page_for_signing_in(stage: Stage) -> None:
    async with an_open_order(stage, "signed-out") as (ann, order_id):
        await ann.page.context.clear_cookies()
        await ann.page.evaluate("window.dispatchEvent(new Event('online'))")
        await expect(ann.page.locator('input[name="subject"]')).to_be_visible()
        assert f"next=%2Fshop%2Forders%2F{order_id}" in ann.page.url

"""Every page on the smallest screen (WCAG 2.1, 1.4.10: 320 px without scrolling sideways) and before axe-core, in both
languages: with names and amounts that are longer than usual, in light and in dark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from browser_people import DESK, SMALL_PHONE, Person, a_browser
from browser_stage import Stage, a_stage
from playwright.async_api import expect

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

LONG_NAME = "Donaudampfschifffahrtsgesellschaftskapitänskajüte"
PRICE_MINOR = 1_234_567  # ¥12,345.67
QUANTITY = 10


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with a_browser() as browser, a_stage(browser, tmp_path_factory.mktemp("browser"), "2m") as stage:
        yield stage


async def look_at(person: Person, path: str | None = None) -> None:
    """The page below /shop, or the one that is open, has no barriers."""
    if path is not None:
        await person.open(path)
    await person.expect_to_fit()
    await person.expect_no_barriers()


@pytest.mark.parametrize(
    ("language", "settings"),
    [("en", SMALL_PHONE), ("zh-CN", SMALL_PHONE | {"color_scheme": "dark"}), ("en", DESK), ("zh-CN", DESK)],
    ids=["en-phone", "zh-phone-dark", "en-desk", "zh-desk"],
)
async def test_no_page_scrolls_sideways_or_is_found_fault_with(
    stage: Stage, language: str, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    name = str(request.node.callspec.id)
    await stage.sell(name, LONG_NAME, 50, PRICE_MINOR)
    async with stage.person(language=language, **settings) as ann:
        await look_at(ann, "/")
        await look_at(ann, "/session")
        await ann.sign_in(f"buyer-with-a-long-name-{name}")
        await look_at(ann, "/")
        await ann.put_into_cart(name, QUANTITY)
        await look_at(ann)
        await ann.place_button().click()
        order_id = await ann.order_id()
        await expect(ann.page.locator("#remaining")).to_be_visible()
        await look_at(ann)
        await look_at(ann, "/orders")
        await look_at(ann, "/orders/nothing")
        await ann.open(f"/orders/{order_id}")
        await ann.page.locator("form.pay button").click()
        await ann.expect_status("AWAITING_SHIPMENT")
        await look_at(ann)
        await ann.sign_in(f"seller-{name}", "seller")
        await ann.open("/")
        await ann.page.locator(f'[data-product="{name}"] summary').click()
        await look_at(ann)
        await ann.sign_in(f"operator-{name}", "operator")
        await look_at(ann, "/operator")
        await look_at(ann, f"/operator/orders/{order_id}")
        await ann.page.locator('input[name="amount"]').fill("58")
        await ann.page.locator('form[action$="/refund"] button').click()
        await expect(ann.page.locator(".payment")).to_contain_text("¥58.00")
        await look_at(ann)
        await look_at(ann, "/operator/refunds")
        await look_at(ann, "/operator/dead-letters")
        await stage.ship(order_id)
        await ann.sign_in(f"buyer-with-a-long-name-{name}")
        await look_at(ann, f"/orders/{order_id}")
        await ann.page.get_by_role("button").filter(visible=True).last.click()
        await ann.expect_status("COMPLETED")
        await look_at(ann)

"""People in front of a real browser at the shop's pages: Debian's Chromium, driven by Playwright.

    async with a_browser() as browser, a_person(browser, shop_url, artefacts) as ann:
        await ann.sign_in("ann")
        await ann.put_into_cart("seat-1")

Invariant: a page that complains (an uncaught error, a rejected script, a broken policy) fails the test of its person.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Locator, Page, async_playwright, expect

CHROMIUM_NAMES = ("chromium", "chromium-browser")
ARTEFACTS_VARIABLE = "BROWSER_ARTEFACTS"
PATIENCE_MS = 15_000
TABS_MAX = 60

PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
SMALL_PHONE: dict[str, Any] = PHONE | {"viewport": {"width": 320, "height": 568}}
DESK: dict[str, Any] = {"viewport": {"width": 1100, "height": 900}}
# Beside its default rules, axe has this one of WCAG 2.5.3 (A), which it calls experimental.
AXE_OPTIONS = {"resultTypes": ["violations"], "rules": {"label-content-name-mismatch": {"enabled": True}}}
# A page that was rejected says so on the console; the page itself is what the test looks at.
_EXPECTED = re.compile(r"Failed to load resource: the server responded with a status of 4\d\d")


def artefacts_folder() -> Path:
    """Where screenshots go: the folder of BROWSER_ARTEFACTS, or a new temporary one."""
    wanted = os.environ.get(ARTEFACTS_VARIABLE)
    folder = Path(wanted) if wanted else Path(tempfile.mkdtemp(prefix="hourglass-browser-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@asynccontextmanager
async def a_browser() -> AsyncIterator[Browser]:
    """The machine's own Chromium, without a window."""
    path = next(found for name in CHROMIUM_NAMES if (found := shutil.which(name)))
    async with async_playwright() as playwright:
        # Root has no sandbox; /dev/shm is small in containers.
        browser = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Person:
    """A visitor with cookies of their own, and a page open."""

    page: Page
    artefacts: Path
    complaints: list[str] = field(default_factory=list)

    async def open(self, path: str) -> None:
        """`path` is below /shop."""
        await self.page.goto(f"/shop{path}")

    async def sign_in(self, name: str, role: str = "buyer") -> None:
        await self.open("/session")
        await self.page.locator('input[name="subject"]').fill(name)
        await self.page.locator('select[name="role"]').select_option(role)
        await self.page.locator('form[action$="/session/sandbox"] button').click()
        await expect(self.page.locator(".subject")).to_have_text(name)

    async def put_into_cart(self, product_id: str, quantity: int = 1) -> None:
        await self.open("/")
        product = self.page.locator(f'[data-product="{product_id}"]')
        await product.locator('input[name="quantity"]').fill(str(quantity))
        await product.locator("button").click()
        await expect(self.page).to_have_url(re.compile("/shop/cart$"))

    def place_button(self) -> Locator:
        return self.page.locator('form[action="/shop/orders"] button')

    async def order(self, product_id: str, quantity: int = 1) -> str:
        """From the product to the page of the order; its id."""
        await self.put_into_cart(product_id, quantity)
        await self.place_button().click()
        return await self.order_id()

    async def order_id(self) -> str:
        """Of the order whose page is open."""
        await expect(self.page).to_have_url(re.compile("/shop/orders/[0-9a-f]{32}$"))
        return self.page.url.rpartition("/")[2]

    async def expect_status(self, status: str) -> None:
        """Wait until the page of the order shows it."""
        await expect(self.page.locator("#order")).to_have_attribute("data-status", status, timeout=PATIENCE_MS)

    async def mark(self) -> None:
        """From now on `expect_same_page` holds, as long as the page is not loaded again."""
        await self.page.evaluate("window.mark = 'still the same page'")

    async def expect_same_page(self) -> None:
        assert await self.page.evaluate("window.mark") == "still the same page"

    async def tab_to(self, wanted: Locator) -> None:
        """With the keyboard alone, and where it arrives can be seen."""
        for _ in range(TABS_MAX):
            await self.page.keyboard.press("Tab")
            if await wanted.evaluate("element => element === document.activeElement"):
                outline = await wanted.evaluate("element => getComputedStyle(element).outlineStyle")
                assert outline != "none", "the focus cannot be seen"
                return
        raise AssertionError(f"{wanted} is not reached by {TABS_MAX} tabs")

    async def expect_to_fit(self) -> None:
        """No page scrolls sideways. (A phone's `innerWidth` grows with what does not fit: it says nothing.)"""
        size = self.page.viewport_size
        assert size is not None
        width = await self.page.evaluate("document.documentElement.scrollWidth")
        assert width <= size["width"], f"{self.page.url} is {width} wide on a screen of {size['width']}"

    async def expect_no_barriers(self) -> None:
        """axe-core finds nothing in the page as it is."""
        found = (await Axe().run(self.page, options=AXE_OPTIONS)).response["violations"]
        barriers = [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]
        assert barriers == [], f"{self.page.url}: {barriers}"

    async def picture(self, name: str) -> Path:
        """A screenshot among the artefacts."""
        path = self.artefacts / f"{name}.png"
        await self.page.screenshot(path=path, full_page=True)
        return path


@asynccontextmanager
async def a_person(
    browser: Browser, url: str, artefacts: Path, *, language: str = "en", **settings: Any
) -> AsyncIterator[Person]:
    """A new browser profile; `settings` are Playwright's, those of DESK unless others are given."""
    context = await browser.new_context(base_url=url, locale=language, **(settings or DESK))
    context.set_default_timeout(PATIENCE_MS)
    person = Person(await context.new_page(), artefacts)

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error" and not _EXPECTED.match(message.text):
            person.complaints.append(message.text)

    context.on("console", hear)
    context.on("weberror", lambda error: person.complaints.append(str(error.error)))
    try:
        yield person
    finally:
        await context.close()
    assert person.complaints == []

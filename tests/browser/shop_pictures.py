"""Makes the pictures of the shop's pages for README and guides, from real processes and a real browser:

    .venv/bin/python tests/browser/shop_pictures.py docs/images

`first-page.png` is what a visitor of `make up` sees first. The order of `order-page.png` is the one of mechanism X2:
10 minutes to pay, 09:20 of them left, ¥158.00.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from browser_people import a_browser, a_person
from playwright.async_api import expect

from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import with_payment_window
from hourglass_local.up import SHOP

PASSED_MS = 39_500  # the browser's clock is moved on by so much: without a wait for it
SCREEN: dict[str, Any] = {"viewport": {"width": 900, "height": 760}, "device_scale_factor": 1}
FIRST_PAGE, ORDER_PAGE = "first-page.png", "order-page.png"


async def take(pictures: Path) -> None:
    """Start a shop, look at its first page, order, and keep what the buyer sees."""
    with tempfile.TemporaryDirectory(prefix="hourglass-picture-") as folder:
        shop = replace(SHOP, rate_limit="off")
        cluster = Cluster(Path(folder), delay_levels=with_payment_window("10m"), shop=shop)
        async with (
            cluster,
            a_browser() as browser,
            a_person(browser, cluster.orders_url, Path(folder), **SCREEN) as buyer,
        ):
            await buyer.open("/")
            await buyer.page.screenshot(path=pictures / FIRST_PAGE, full_page=True)
            await buyer.sign_in("buyer-7")
            await buyer.page.clock.install()
            await buyer.order("G7-window-seat")
            await buyer.page.clock.run_for(PASSED_MS)
            await expect(buyer.page.locator("#remaining")).to_have_text("09:20")
            await buyer.page.screenshot(path=pictures / ORDER_PAGE)


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the pictures of the shop's pages.")
    parser.add_argument("folder", type=Path, help="where to write them")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(folder))
    for name in (FIRST_PAGE, ORDER_PAGE):
        print(f"{folder / name}: {(folder / name).stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

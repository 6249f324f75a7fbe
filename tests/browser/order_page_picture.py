"""Makes the README's picture of the order page, from real processes and a real browser:

    .venv/bin/python tests/browser/order_page_picture.py docs/images/order-page.png

The order is the one of mechanism X2: 10 minutes to pay, 09:20 of them left, ¥158.00.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from browser_people import a_browser, a_person
from playwright.async_api import expect

from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import ShopSettings, with_payment_window
from hourglass_local.shop import Product, Shop

PASSED_MS = 39_500  # the browser's clock is moved on by so much: without a wait for it
SCREEN: dict[str, Any] = {"viewport": {"width": 900, "height": 760}, "device_scale_factor": 1}


async def take(path: Path) -> None:
    """Start a shop, order, and keep what the buyer sees."""
    with tempfile.TemporaryDirectory(prefix="hourglass-picture-") as folder:
        settings = ShopSettings(sandbox_sign_in=True)
        cluster = Cluster(Path(folder), delay_levels=with_payment_window("10m"), shop=settings)
        async with cluster, a_browser() as browser:
            async with Shop(cluster.orders_url, cluster.badges) as shop:
                await shop.add_product(Product("seat-12A", "Seat 12A, train G7", 15_800, "CNY", 5))
            async with a_person(browser, cluster.orders_url, Path(folder), **SCREEN) as buyer:
                await buyer.sign_in("buyer-7")
                await buyer.page.clock.install()
                await buyer.order("seat-12A")
                await buyer.page.clock.run_for(PASSED_MS)
                await expect(buyer.page.locator("#remaining")).to_have_text("09:20")
                path.parent.mkdir(parents=True, exist_ok=True)
                await buyer.page.screenshot(path=path)


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the README's picture of the order page.")
    parser.add_argument("path", type=Path, help="the PNG to write")
    path = parser.parse_args().path
    asyncio.run(take(path))
    print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

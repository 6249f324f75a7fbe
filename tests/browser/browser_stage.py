"""What the stories in a browser play on: a whole shop as processes, and the browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from browser_people import Person, a_person, artefacts_folder
from playwright.async_api import Browser

from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import ShopSettings, with_payment_window
from hourglass_local.shop import Product, Shop

PRICE_MINOR = 15_800  # mechanism X2


@dataclass(frozen=True, slots=True)
class Stage:
    """What every story plays on."""

    cluster: Cluster
    browser: Browser
    artefacts: Path

    async def sell(self, product_id: str, name: str, available: int, price_minor: int = PRICE_MINOR) -> None:
        async with Shop(self.cluster.orders_url, self.cluster.badges) as shop:
            await shop.add_product(Product(product_id, name, price_minor, "CNY", available))

    async def ship(self, order_id: str) -> None:
        async with Shop(self.cluster.orders_url, self.cluster.badges) as shop:
            await shop.ship(order_id)

    def person(self, *, language: str = "en", **settings: Any) -> AbstractAsyncContextManager[Person]:
        return a_person(self.browser, self.cluster.orders_url, self.artefacts, language=language, **settings)


@asynccontextmanager
async def a_stage(browser: Browser, folder: Path, payment_window: str) -> AsyncIterator[Stage]:
    """A shop whose buyers have so long to pay, and in which visitors may sign in under any name."""
    settings = ShopSettings(sandbox_sign_in=True, sample_catalogue=True, gateway_delay_ms=300)
    async with Cluster(folder, delay_levels=with_payment_window(payment_window), shop=settings) as cluster:
        yield Stage(cluster, browser, artefacts_folder())

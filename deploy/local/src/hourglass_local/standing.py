"""The standing invariants of a shop (tools/invariants), asked of its databases."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from hourglass_invariants.checking import CheckResult, Sources, Violation, run_checks
from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import GATEWAY, ORDERS, PAYMENTS
from hourglass_local.shop import PENDING, SHIPPED, Product, Shop


@dataclass(frozen=True, slots=True)
class Databases:
    """Of a shop that is no cluster of ours: the URL of each service's, and when a shipped order completes by itself."""

    urls: Mapping[str, str]
    completion_after_ms: int


class Standing:
    """`before` are the products before anything was ordered: their units are the constant of the stock."""

    def __init__(self, shop: Cluster | Databases, before: Mapping[str, Product]) -> None:
        if isinstance(shop, Cluster):
            shop = Databases(shop.shop.database_urls, shop.shop.settings.completion_after_ms)
        self._sources = Sources(shop.urls[ORDERS], shop.urls[PAYMENTS], shop.urls[GATEWAY])
        self._completion_after_ms = shop.completion_after_ms
        self._stock = {product_id: product.units for product_id, product in before.items()}

    async def results(self) -> list[CheckResult]:
        """Every check, with everything finished by now. Raises InvariantsError."""
        return await run_checks(
            self._sources,
            int(time.time() * 1000),
            grace_ms=0,
            completion_after_ms=self._completion_after_ms,
            stock=self._stock,
        )

    async def violations(self) -> list[Violation]:
        """Everything that does not hold, or is not finished. Raises InvariantsError."""
        return [violation for result in await self.results() for violation in result.violations]

    async def is_settled(self, shop: Shop, *, shipped_complete: bool) -> bool:
        """Whether nothing moves any more: no order waits, unless for its shipment, and every invariant holds.

        With `shipped_complete` shipped orders are waited for, too. Raises InvariantsError, ShopError.
        """
        orders = (await shop.statistics()).orders
        if orders.get(PENDING, 0) or (shipped_complete and orders.get(SHIPPED, 0)):
            return False
        return not await self.violations()

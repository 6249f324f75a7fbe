"""A few products that a shop can begin with: `make up`, the demonstration and docker compose switch them on.

Invariant: a product that the shop has is left alone, whatever its seller has made of it since. No product is ever
deleted, so that each sample is loaded once, however often and in however many processes the shop starts. The pages
have names of the samples in each language (`sample.` in the texts) and pictures (static/products).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import structlog

from orders.domain.errors import ProductExistsError
from orders.domain.product import Product
from orders.service.queries import AddProduct
from orders.service.use_case import Units

CURRENCY = "CNY"

SAMPLE_CATALOGUE: Mapping[str, Product] = MappingProxyType(
    {
        product_id: Product(product_id, name, price_minor, CURRENCY, available)
        for product_id, name, price_minor, available in (
            ("G7-window-seat", "Window seat, train G7", 15_800, 40),
            ("Z281-berth", "Sleeper berth, train Z281", 32_800, 4),
            ("bicycle-space", "Bicycle space", 6_000, 12),
            ("hourglass", "Hourglass, 30 minutes", 4_500, 30),
            ("lunch-box", "Lunch box", 3_800, 60),
            ("tea", "Jasmine tea", 1_500, 100),
        )
    }
)

log = structlog.get_logger(__name__)


def is_sample(product: Product) -> bool:
    """Whether it is the sample of its id, and no other seller's product with the same id."""
    sample = SAMPLE_CATALOGUE.get(product.product_id)
    return sample is not None and sample.name == product.name


class LoadSampleCatalogue:
    """Puts the samples on sale that the shop does not have yet."""

    def __init__(self, units: Units) -> None:
        self._units = units
        self._add_product = AddProduct(units)

    async def __call__(self) -> None:
        """Raises StorageUnavailableError; the next start loads what is missing then."""
        async with self._units.autocommit() as unit:
            known = await unit.products.find(SAMPLE_CATALOGUE)
        for product_id in SAMPLE_CATALOGUE.keys() - known:
            try:
                await self._add_product(SAMPLE_CATALOGUE[product_id])
            except ProductExistsError:
                log.info("another process has just loaded this sample", product_id=product_id)

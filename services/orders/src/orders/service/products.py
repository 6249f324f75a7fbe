"""What a seller does: bringing products and their stock."""

from __future__ import annotations

from orders.domain.product import Product
from orders.service.unit_of_work import Units


class AddProduct:
    """The use case behind POST /products."""

    def __init__(self, units: Units) -> None:
        self._units = units

    async def __call__(self, product: Product) -> Product:
        """Put the product on sale. Raises ProductExistsError."""
        async with self._units.writing() as unit:
            await unit.products.add(product)
            await unit.commit()
        return product

"""What a seller does: bringing products and their stock, and changing what is on sale."""

from __future__ import annotations

from orders.domain.product import Product, ProductChange
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


class ChangeProduct:
    """The use case behind PATCH /products/{product_id}."""

    def __init__(self, units: Units) -> None:
        self._units = units

    async def __call__(self, product_id: str, wanted: ProductChange) -> Product:
        """The product as the seller wants it, which it may have been before.

        Raises UnknownProductError, ProductChangedError, UnitsInOrdersError.
        """
        async with self._units.writing() as unit:
            found = await unit.products.get_locked(product_id)
            changed = found.changed(wanted)
            if changed is not found:
                await unit.products.change(changed)
                await unit.commit()
        return changed

"""A cart as a buyer sees it before ordering: today's names, prices and stock beside the wished quantities.

Nothing is reserved here, and a price may change until the order is placed: PlaceOrder decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orders.domain.order import RequestedLine
from orders.domain.product import Product
from orders.service.unit_of_work import Units


@dataclass(frozen=True, slots=True)
class BasketLine:
    """One wish; `product` is None when there is no such product any more."""

    product_id: str
    quantity: int
    product: Product | None

    @property
    def total_minor(self) -> int:
        return 0 if self.product is None else self.quantity * self.product.price_minor

    @property
    def is_available(self) -> bool:
        """Whether an order of this line alone would be taken now."""
        return self.product is not None and self.product.is_on_sale and self.product.available >= self.quantity


@dataclass(frozen=True, slots=True)
class Basket:
    """All wishes; `currency` is None for an empty one, and for one that mixes currencies."""

    lines: tuple[BasketLine, ...]

    @property
    def currency(self) -> str | None:
        currencies = {line.product.currency for line in self.lines if line.product is not None}
        return currencies.pop() if len(currencies) == 1 else None

    @property
    def total_minor(self) -> int:
        return sum(line.total_minor for line in self.lines)

    @property
    def can_be_ordered(self) -> bool:
        return self.currency is not None and all(line.is_available for line in self.lines)


class Baskets:
    """The questions of the cart and of whoever shows an order's lines."""

    def __init__(self, units: Units) -> None:
        self._units = units

    async def price(self, wishes: Sequence[RequestedLine]) -> Basket:
        """The wishes at this moment's prices, in their own order."""
        products = await self.products([wish.product_id for wish in wishes])
        return Basket(
            tuple(BasketLine(wish.product_id, wish.quantity, products.get(wish.product_id)) for wish in wishes)
        )

    async def products(self, product_ids: Collection[str]) -> dict[str, Product]:
        """Those of the products that exist, by id."""
        if not product_ids:
            return {}
        async with self._units.reading() as unit:
            return await unit.products.find(product_ids)

"""A product and its stock.

Invariants: available, reserved and sold are never negative, and their sum, the total, changes only when the seller
changes it. The schema holds the first by CHECK constraints; the second holds because orders only move units between the
three. `version` grows by one with each change of the seller's, and with nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orders.domain.errors import ProductChangedError, UnitsInOrdersError


@dataclass(frozen=True, slots=True)
class ProductChange:
    """What a seller wants to change; None stays as it is.

    Stock is changed by its total, which orders leave alone: the change can be sent again, and takes no unit from an
    order that is placed meanwhile. `version` is the one that the seller has seen; None is any.
    """

    price_minor: int | None = None
    total: int | None = None
    is_on_sale: bool | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """Something to sell: its price for one unit, in the currency's minor unit, and where its units are.

    Without `is_on_sale` it cannot be ordered; existing orders go on, and what they give back is available.
    """

    product_id: str
    name: str
    price_minor: int
    currency: str
    available: int
    reserved: int = 0
    sold: int = 0
    is_on_sale: bool = True
    version: int = 1

    def __post_init__(self) -> None:
        if self.price_minor < 0 or min(self.available, self.reserved, self.sold) < 0:
            raise ValueError(f"price and stock of {self.product_id!r} are whole numbers from 0")
        if self.version < 1:
            raise ValueError(f"product {self.product_id!r} has version {self.version}; versions start at 1")

    @property
    def total(self) -> int:
        """All units that the seller has brought."""
        return self.available + self.reserved + self.sold

    def changed(self, wanted: ProductChange) -> Product:
        """The product after the change, or itself when it is so already.

        Raises ProductChangedError if it would change another version than the seller has seen, and UnitsInOrdersError
        if the total is less than what orders have.
        """
        in_orders = self.reserved + self.sold
        total = self.total if wanted.total is None else wanted.total
        if total < in_orders:
            raise UnitsInOrdersError(self.product_id, total, in_orders)
        changed = replace(
            self,
            price_minor=self.price_minor if wanted.price_minor is None else wanted.price_minor,
            available=total - in_orders,
            is_on_sale=self.is_on_sale if wanted.is_on_sale is None else wanted.is_on_sale,
        )
        if changed == self:
            return self
        if wanted.version not in {None, self.version}:
            raise ProductChangedError(self.product_id, self.version)
        return replace(changed, version=self.version + 1)

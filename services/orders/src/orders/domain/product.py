"""A product and its stock.

Invariants: available, reserved and sold are never negative, and their sum changes only when the seller brings stock.
The schema holds the first by CHECK constraints; the second holds because units only move between the three.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """Something on sale: its price for one unit, in the currency's minor unit, and where its units are."""

    product_id: str
    name: str
    price_minor: int
    currency: str
    available: int
    reserved: int = 0
    sold: int = 0

    def __post_init__(self) -> None:
        if self.price_minor < 0 or min(self.available, self.reserved, self.sold) < 0:
            raise ValueError(f"price and stock of {self.product_id!r} are whole numbers from 0")

"""What a buyer and a seller can ask of orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hourglass_local.http_client import HttpClient

PENDING, CLOSED = "PENDING_PAYMENT", "CLOSED"
PAID_STATUSES = frozenset({"AWAITING_SHIPMENT", "SHIPPED", "COMPLETED"})


@dataclass(frozen=True, slots=True)
class Product:
    """What is on sale; `available` is given back by the shop together with what it has done with the units."""

    product_id: str
    name: str
    price_minor: int
    currency: str
    available: int
    reserved: int = 0
    sold: int = 0

    @property
    def units(self) -> int:
        return self.available + self.reserved + self.sold


@dataclass(frozen=True, slots=True)
class Order:
    """Times are wall-clock milliseconds; `items` are product id -> quantity; `payment_id` is set once it is paid."""

    order_id: str
    buyer_id: str
    status: str
    items: Mapping[str, int]
    total_minor: int
    currency: str
    expires_at_ms: int
    closed_at_ms: int | None
    payment_id: str | None

    @property
    def is_paid(self) -> bool:
        return self.status in PAID_STATUSES

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> Self:
        return cls(
            order_id=members["order_id"],
            buyer_id=members["buyer_id"],
            status=members["status"],
            items={item["product_id"]: item["quantity"] for item in members["items"]},
            total_minor=members["total_minor"],
            currency=members["currency"],
            expires_at_ms=members["expires_at_ms"],
            closed_at_ms=members["closed_at_ms"],
            payment_id=members["payment_id"],
        )


@dataclass(frozen=True, slots=True)
class OrderStatistics:
    """Where all orders are, how many were ever paid, and for how many payments orders wants the money to go back."""

    orders: Mapping[str, int]
    paid_orders: int
    refund_requests: int


class Shop(HttpClient):
    """Methods raise RefusedError and ShopError."""

    async def add_product(self, product: Product) -> None:
        body = {
            "product_id": product.product_id,
            "name": product.name,
            "price_minor": product.price_minor,
            "currency": product.currency,
            "available": product.available,
        }
        await self.post("/products", body)

    async def place_order(self, buyer_id: str, items: Mapping[str, int], key: str) -> Order:
        """Order `items` (product id -> quantity), once for each `key`."""
        lines = [{"product_id": product_id, "quantity": quantity} for product_id, quantity in items.items()]
        return Order.of((await self.post("/orders", {"buyer_id": buyer_id, "items": lines}, key)).json())

    async def statistics(self) -> OrderStatistics:
        answer = await self.get("/statistics")
        return OrderStatistics(answer["orders"], answer["paid_orders"], answer["refund_requests"])

    async def products(self) -> dict[str, Product]:
        """All, by id."""
        return {members["product_id"]: Product(**members) for members in await self.all_pages("/products")}

    async def orders(self) -> dict[str, Order]:
        """All, by id."""
        return {members["order_id"]: Order.of(members) for members in await self.all_pages("/orders")}

"""What a buyer and a seller can ask of orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from hourglass_local.http_client import HttpClient

PENDING, PAID, SHIPPED, COMPLETED, CLOSED = "PENDING_PAYMENT", "AWAITING_SHIPMENT", "SHIPPED", "COMPLETED", "CLOSED"
PAID_STATUSES = frozenset({PAID, SHIPPED, COMPLETED})


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
    """Times are wall-clock milliseconds; `items` are product id -> quantity; `payment_id` is set once it is paid, and
    stays when the seller cancels it afterwards.
    """

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
        """Whether its buyer has paid and gets the goods."""
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
    """Where all orders are, by status."""

    orders: Mapping[str, int]

    @property
    def paid_orders(self) -> int:
        return sum(self.orders.get(status, 0) for status in PAID_STATUSES)


class Shop(HttpClient):
    """Each method acts as the caller who may; all raise RefusedError and ShopError."""

    async def add_product(self, product: Product) -> None:
        body = {
            "product_id": product.product_id,
            "name": product.name,
            "price_minor": product.price_minor,
            "currency": product.currency,
            "available": product.available,
        }
        await self.post("/products", self.badges.seller, body)

    async def place_order(self, buyer_id: str, items: Mapping[str, int], key: str) -> Order:
        """Order `items` (product id -> quantity), once for each `key` of this buyer."""
        lines = [{"product_id": product_id, "quantity": quantity} for product_id, quantity in items.items()]
        return Order.of((await self.post("/orders", self.badges.buyer(buyer_id), {"items": lines}, key)).json())

    async def cancel(self, order: Order) -> Order:
        """By its buyer."""
        return await self._command(order.order_id, "cancel", self.badges.buyer(order.buyer_id))

    async def cancel_as_seller(self, order_id: str) -> Order:
        return await self._command(order_id, "cancel", self.badges.seller)

    async def ship(self, order_id: str) -> Order:
        return await self._command(order_id, "ship", self.badges.seller)

    async def confirm(self, order: Order) -> Order:
        """Its buyer has received it."""
        return await self._command(order.order_id, "confirm", self.badges.buyer(order.buyer_id))

    async def order(self, order_id: str) -> Order:
        return Order.of(await self.get(f"/orders/{order_id}", self.badges.operator))

    async def statistics(self) -> OrderStatistics:
        return OrderStatistics((await self.get("/statistics", self.badges.operator))["orders"])

    async def products(self) -> dict[str, Product]:
        """All, by id."""
        known = {field.name for field in fields(Product)}
        pages = await self.all_pages("/products", "")
        return {one["product_id"]: Product(**{name: one[name] for name in known}) for one in pages}

    async def orders(self) -> dict[str, Order]:
        """All of everybody, by id."""
        pages = await self.all_pages("/orders", self.badges.operator)
        return {members["order_id"]: Order.of(members) for members in pages}

    async def _command(self, order_id: str, command: str, token: str) -> Order:
        return Order.of((await self.post(f"/orders/{order_id}/{command}", token)).json())

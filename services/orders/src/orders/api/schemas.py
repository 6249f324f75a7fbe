"""The JSON of requests and answers. Numbers are strict: money and quantities are never read from text or from floats.

The limits are such that the largest order's total still fits the database's 64-bit integers.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool, StrictInt

from orders.domain.order import ChangeReason, OrderStatus, RequestedLine
from orders.domain.product import Product, ProductChange
from orders.service.place_order import OrderRequest
from orders.service.use_case import OrderFilter
from servicekit.http.parameters import (
    PAGE_DEFAULT,
    AnswerModel,
    Currency,
    Cursor,
    Identifier,
    Limit,
    Milliseconds,
    RequestModel,
    like,
)

PRICE_MAX_MINOR = 1_000_000_000_000
STOCK_MAX = 1_000_000_000
QUANTITY_MAX = 10_000
LINES_MAX = 50

_PRODUCT = {"product_id": "seat-12A", "name": "Seat 12A", "price_minor": 15800, "currency": "CNY", "available": 100}
_PRODUCT_NOW = _PRODUCT | {"available": 97, "reserved": 1, "sold": 2, "total": 100, "is_on_sale": True, "version": 1}
_ITEM = {"product_id": "seat-12A", "quantity": 1}
_ORDER = {
    "order_id": "8e03978e40d543e8bc936894a57f9324",
    "buyer_id": "buyer-7",
    "status": "AWAITING_SHIPMENT",
    "items": [_ITEM | {"unit_price_minor": 15800}],
    "total_minor": 15800,
    "currency": "CNY",
    "version": 2,
    "created_at_ms": 1767225600000,
    "expires_at_ms": 1767227400000,
    "paid_at_ms": 1767226200000,
    "payment_id": "5f1c07d2a9b64c0f8a4d1e2b3c4d5e6f",
    "shipped_at_ms": None,
    "completed_at_ms": None,
    "closed_at_ms": None,
}
_PLACED = {
    "old_status": None,
    "new_status": "PENDING_PAYMENT",
    "reason": "placed",
    "at_ms": 1767225600000,
    "actor": "buyer-7",
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
}
_PAID = {
    "old_status": "PENDING_PAYMENT",
    "new_status": "AWAITING_SHIPMENT",
    "reason": "paid",
    "at_ms": 1767226200125,
    "actor": "order-payment-handler",
    "trace_id": "0af7651916cd43dd8448eb211c80319c",
}
_CURSOR = "MTc2NzIyNTYwMDAwMB84ZTAzOTc4ZTQwZDU0M2U4YmM5MzY4OTRhNTdmOTMyNA"


Amount = Annotated[int, Field(ge=0, description="in the currency's minor unit")]
Units = Annotated[int, Field(ge=0)]


Price = Annotated[StrictInt, Field(ge=1, le=PRICE_MAX_MINOR, description="of one unit", examples=[15800])]


class NewProduct(RequestModel):
    """A product and the stock that its seller brings."""

    model_config = like(_PRODUCT)

    product_id: Annotated[Identifier, Field(description="the seller's stock-keeping unit", examples=["seat-12A"])]
    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$", examples=["Seat 12A"])]
    price_minor: Price
    currency: Currency
    available: Annotated[StrictInt, Field(ge=0, le=STOCK_MAX, description="units on sale", examples=[100])]

    def to_product(self) -> Product:
        return Product(self.product_id, self.name, self.price_minor, self.currency, self.available)


class ChangedProduct(RequestModel):
    """What a seller changes of a product; what is left out, or null, stays as it is."""

    model_config = like({"price_minor": 14800, "version": 1})

    price_minor: Price | None = None
    total: Annotated[
        StrictInt | None,
        Field(ge=0, le=STOCK_MAX, description="of all units: available, reserved and sold; orders never change it"),
    ] = None
    is_on_sale: Annotated[StrictBool | None, Field(description="false ends the sale; true begins it again")] = None
    version: Annotated[StrictInt | None, Field(ge=1, description="the one that the seller has seen")] = None

    def to_change(self) -> ProductChange:
        return ProductChange(self.price_minor, self.total, self.is_on_sale, self.version)


class ProductAnswer(AnswerModel):
    """A product and where its units are: available + reserved + sold is the total, whatever is ordered."""

    model_config = like(_PRODUCT_NOW)

    product_id: str
    name: str
    price_minor: Annotated[Amount, Field(description="of one unit, in the currency's minor unit")]
    currency: Currency
    available: Annotated[Units, Field(description="on sale")]
    reserved: Annotated[Units, Field(description="in orders that wait for their payment")]
    sold: Units
    total: Annotated[Units, Field(description="all units that the seller has brought")]
    is_on_sale: Annotated[bool, Field(description="whether it can be ordered")]
    version: Annotated[int, Field(ge=1, description="grows with each change of the seller's, and not with orders")]


class ProductPage(AnswerModel):
    """Part of the list of products."""

    model_config = like({"items": [_PRODUCT_NOW], "next_cursor": "c2VhdC0xMkE"})

    items: list[ProductAnswer]
    next_cursor: str | None


class NewOrderItem(RequestModel):
    """So many units of a product."""

    product_id: Annotated[Identifier, Field(examples=["seat-12A"])]
    quantity: Annotated[StrictInt, Field(ge=1, le=QUANTITY_MAX, examples=[1])]


def _each_product_once(items: list[NewOrderItem]) -> list[NewOrderItem]:
    seen: set[str] = set()
    for item in items:
        if item.product_id in seen:
            raise ValueError(f"{item.product_id!r} is named twice; add its quantities up in one item")
        seen.add(item.product_id)
    return items


class NewOrder(RequestModel):
    """What a buyer orders, at the prices of this moment; each product once."""

    model_config = like({"items": [_ITEM]})

    items: Annotated[list[NewOrderItem], Field(min_length=1, max_length=LINES_MAX), AfterValidator(_each_product_once)]
    expected_total_minor: Annotated[
        StrictInt | None, Field(ge=0, description="what the buyer has seen; at another total nothing is ordered")
    ] = None

    def to_request(self, buyer_id: str) -> OrderRequest:
        return OrderRequest(buyer_id, tuple(RequestedLine(item.product_id, item.quantity) for item in self.items))


class WantedOrders(RequestModel):
    """The query of a list of orders; whatever is left out is any."""

    buyer_id: Annotated[Identifier | None, Field(description="the orders of this buyer")] = None
    status: Annotated[OrderStatus | None, Field(description="those that stand here")] = None
    created_from_ms: Annotated[Milliseconds | None, Field(description="placed at this moment or later")] = None
    created_before_ms: Annotated[Milliseconds | None, Field(description="placed before this moment")] = None
    limit: Limit = PAGE_DEFAULT
    cursor: Cursor | None = None

    def filter(self) -> OrderFilter:
        return OrderFilter(self.buyer_id, self.status, self.created_from_ms, self.created_before_ms)


class OrderItem(AnswerModel):
    """So many units at the price of the moment of ordering."""

    product_id: str
    quantity: int
    unit_price_minor: Amount


class OrderAnswer(AnswerModel):
    """An order; times are milliseconds since 1970-01-01 UTC, money is in the currency's minor unit.

    A member that does not apply yet, or never will, is null.
    """

    model_config = like(_ORDER)

    order_id: str
    buyer_id: str
    status: OrderStatus
    items: Annotated[list[OrderItem], Field(validation_alias="lines")]
    total_minor: Amount
    currency: Currency
    version: Annotated[int, Field(ge=1, description="grows with each change; the ETag names it")]
    created_at_ms: int
    expires_at_ms: Annotated[int, Field(description="unpaid, the order closes at this moment or soon after")]
    paid_at_ms: int | None
    payment_id: Annotated[str | None, Field(description="also of an order that was paid and then cancelled")]
    shipped_at_ms: int | None
    completed_at_ms: int | None
    closed_at_ms: int | None


class HoldAnswer(AnswerModel):
    """A payment's hold on an order."""

    model_config = like(
        {"order_id": _ORDER["order_id"], "payment_id": _ORDER["payment_id"], "held_until_ms": 1767226230000}
    )

    order_id: str
    payment_id: str
    held_until_ms: Annotated[int, Field(description="the order is not closed before, unless this payment lets it go")]


class OrderPage(AnswerModel):
    """Part of the list of orders."""

    model_config = like({"items": [_ORDER], "next_cursor": _CURSOR})

    items: list[OrderAnswer]
    next_cursor: str | None


class StatusChangeAnswer(AnswerModel):
    """One change of an order's status."""

    old_status: Annotated[OrderStatus | None, Field(description="null for the first change")]
    new_status: OrderStatus
    reason: ChangeReason
    at_ms: int
    actor: Annotated[str, Field(description="the caller, or the consumer group that acted by itself")]
    trace_id: Annotated[str | None, Field(description="where to look up how it happened")]


class OrderHistory(AnswerModel):
    """How an order came to where it is."""

    model_config = like({"order_id": _ORDER["order_id"], "changes": [_PLACED, _PAID]})

    order_id: str
    changes: list[StatusChangeAnswer]


class StockAnswer(AnswerModel):
    """Units over all products."""

    available: Units
    reserved: Units
    sold: Units
    total: Units


class StatisticsAnswer(AnswerModel):
    """Where all orders and all units are at one moment."""

    model_config = like(
        {
            "orders": {"PENDING_PAYMENT": 1, "AWAITING_SHIPMENT": 2, "SHIPPED": 0, "COMPLETED": 5, "CLOSED": 3},
            "stock": {"available": 92, "reserved": 1, "sold": 7, "total": 100},
            "paid_orders": 8,
            "refund_requests": 1,
        }
    )

    orders: dict[OrderStatus, int]
    stock: StockAnswer
    paid_orders: Annotated[int, Field(description="orders that were paid, wherever they stand now")]
    refund_requests: Annotated[
        int,
        Field(description="payments that came too late, twice, or with a wrong amount, or whose order was cancelled"),
    ]

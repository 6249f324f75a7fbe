"""The JSON of requests and answers. Numbers are strict: money and quantities are never read from text or from floats.

The limits are such that the largest order's total still fits the database's 64-bit integers.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, StrictInt

from orders.domain.order import Order, OrderLine, RequestedLine, StatusChange
from orders.domain.order_status import ChangeReason, OrderStatus
from orders.domain.product import Product
from orders.service.place_order import OrderRequest
from orders.service.queries import Page, Statistics
from servicekit.api.schemas import AnswerModel, Currency, Identifier, RequestModel

PRICE_MAX_MINOR = 1_000_000_000_000
STOCK_MAX = 1_000_000_000
QUANTITY_MAX = 10_000
LINES_MAX = 50


class NewProduct(RequestModel):
    """A product and the stock that its seller brings."""

    product_id: Annotated[Identifier, Field(description="the seller's stock-keeping unit", examples=["seat-12A"])]
    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$", examples=["Seat 12A"])]
    price_minor: Annotated[StrictInt, Field(ge=1, le=PRICE_MAX_MINOR, description="of one unit", examples=[15800])]
    currency: Currency
    available: Annotated[StrictInt, Field(ge=0, le=STOCK_MAX, description="units on sale", examples=[100])]

    def to_product(self) -> Product:
        return Product(self.product_id, self.name, self.price_minor, self.currency, self.available)


class ProductAnswer(AnswerModel):
    """A product and where its units are: available + reserved + sold stays the same whatever is ordered."""

    product_id: str
    name: str
    price_minor: int
    currency: str
    available: int
    reserved: int
    sold: int

    @classmethod
    def of(cls, product: Product) -> Self:
        return cls.model_validate(product, from_attributes=True)


class ProductPage(AnswerModel):
    items: list[ProductAnswer]
    next_cursor: str | None

    @classmethod
    def of(cls, page: Page[Product]) -> Self:
        return cls(items=[ProductAnswer.of(product) for product in page.items], next_cursor=page.next_cursor)


class NewOrderItem(RequestModel):
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
    """What a buyer orders, at the prices of this moment."""

    buyer_id: Annotated[Identifier, Field(examples=["buyer-7"])]
    items: Annotated[list[NewOrderItem], Field(min_length=1, max_length=LINES_MAX), AfterValidator(_each_product_once)]

    def to_request(self) -> OrderRequest:
        return OrderRequest(self.buyer_id, tuple(RequestedLine(item.product_id, item.quantity) for item in self.items))


class OrderItem(AnswerModel):
    product_id: str
    quantity: int
    unit_price_minor: int

    @classmethod
    def of(cls, line: OrderLine) -> Self:
        return cls.model_validate(line, from_attributes=True)


class OrderAnswer(AnswerModel):
    """An order; times are milliseconds since 1970-01-01 UTC, money is in the currency's minor unit."""

    order_id: str
    buyer_id: str
    status: OrderStatus
    items: list[OrderItem]
    total_minor: int
    currency: str
    created_at_ms: int
    expires_at_ms: Annotated[int, Field(description="unpaid, the order closes at this moment or soon after")]
    closed_at_ms: int | None
    payment_id: str | None
    paid_at_ms: int | None

    @classmethod
    def of(cls, order: Order) -> Self:
        return cls(
            order_id=order.order_id,
            buyer_id=order.buyer_id,
            status=order.status,
            items=[OrderItem.of(line) for line in order.lines],
            total_minor=order.total_minor,
            currency=order.currency,
            created_at_ms=order.created_at_ms,
            expires_at_ms=order.expires_at_ms,
            closed_at_ms=order.closed_at_ms,
            payment_id=order.payment_id,
            paid_at_ms=order.paid_at_ms,
        )


class OrderPage(AnswerModel):
    items: list[OrderAnswer]
    next_cursor: str | None

    @classmethod
    def of(cls, page: Page[Order]) -> Self:
        return cls(items=[OrderAnswer.of(order) for order in page.items], next_cursor=page.next_cursor)


class StatusChangeAnswer(AnswerModel):
    old_status: Annotated[OrderStatus | None, Field(description="null for the first row")]
    new_status: OrderStatus
    reason: ChangeReason
    at_ms: int

    @classmethod
    def of(cls, change: StatusChange) -> Self:
        return cls.model_validate(change, from_attributes=True)


class OrderHistory(AnswerModel):
    order_id: str
    changes: list[StatusChangeAnswer]


class StockAnswer(AnswerModel):
    available: int
    reserved: int
    sold: int
    total: int


class StatisticsAnswer(AnswerModel):
    """Where all orders and all units are at one moment."""

    orders: dict[OrderStatus, int]
    stock: StockAnswer
    paid_orders: Annotated[int, Field(description="orders that were paid, wherever they stand now")]
    refund_requests: Annotated[int, Field(description="payments that came too late, twice, or with a wrong amount")]

    @classmethod
    def of(cls, statistics: Statistics) -> Self:
        stock = statistics.stock
        return cls(
            orders=statistics.orders,
            stock=StockAnswer(
                available=stock.available,
                reserved=stock.reserved,
                sold=stock.sold,
                total=stock.available + stock.reserved + stock.sold,
            ),
            paid_orders=statistics.paid_orders,
            refund_requests=statistics.refund_requests,
        )

"""What buyers, the seller and the operator can ask of orders and of payments.

The gateway decides later (a payment is answered 202 then); the client that pays looks at its payment until it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from hourglass_local.http_client import HttpClient, RejectedError, ShopError, is_replayed
from hourglass_local.waiting import NotInTimeError, eventually

PENDING, PAID, SHIPPED, COMPLETED, CLOSED = "PENDING_PAYMENT", "AWAITING_SHIPMENT", "SHIPPED", "COMPLETED", "CLOSED"
METHOD = "card"
CREATED, CAPTURED, DECLINED = "CREATED", "CAPTURED", "DECLINED"
PARTIALLY_REFUNDED, REFUNDED = "PARTIALLY_REFUNDED", "REFUNDED"
ORDER_CLOSED, PAYMENT_DECLINED = "order-closed", "payment-declined"  # problems
DECISION_TIMEOUT_S, LOOK_INTERVAL_S = 60.0, 0.1

PAID_STATUSES = frozenset({PAID, SHIPPED, COMPLETED})

TOOK_MONEY = frozenset({CAPTURED, PARTIALLY_REFUNDED, REFUNDED})


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
    """Each method acts as a caller with the scope for it; all raise RejectedError and ShopError."""

    async def add_product(self, product: Product) -> None:
        body = {
            "product_id": product.product_id,
            "name": product.name,
            "price_minor": product.price_minor,
            "currency": product.currency,
            "available": product.available,
        }
        await self.post("/products", self.badges.seller, body)

    async def change_total(self, product_id: str, units: int) -> None:
        """The seller brings units, or takes some away, until there are so many in all."""
        await self.patch(f"/products/{product_id}", self.badges.seller, {"total": units})

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
        """Those of all buyers, by id."""
        pages = await self.all_pages("/orders", self.badges.operator)
        return {members["order_id"]: Order.of(members) for members in pages}

    async def _command(self, order_id: str, command: str, token: str) -> Order:
        return Order.of((await self.post(f"/orders/{order_id}/{command}", token)).json())


@dataclass(frozen=True, slots=True)
class Payment:
    """Times are wall-clock milliseconds."""

    payment_id: str
    order_id: str
    amount_minor: int
    status: str
    captured_at_ms: int | None

    @property
    def took_money(self) -> bool:
        """Whether the money was taken, given back or not."""
        return self.status in TOOK_MONEY

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> Self:
        return cls(
            payment_id=members["payment_id"],
            order_id=members["order_id"],
            amount_minor=members["amount_minor"],
            status=members["status"],
            captured_at_ms=members["captured_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a request to pay; `replayed` if an earlier request with the same key had made the payment."""

    payment: Payment
    replayed: bool


@dataclass(frozen=True, slots=True)
class Refund:
    """Money that goes back; a payment may have several."""

    refund_id: str
    payment_id: str
    amount_minor: int
    status: str

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> Self:
        return cls(members["refund_id"], members["payment_id"], members["amount_minor"], members["status"])


@dataclass(frozen=True, slots=True)
class GatewayBook:
    """What the gateway itself has written down; money in minor units."""

    captured_minor: int
    refunded_minor: int
    captures: int
    refunds: int


@dataclass(frozen=True, slots=True)
class PaymentStatistics:
    """Where all payments are, by the database of payments and by the gateway's own book."""

    payments: Mapping[str, int]
    captured_minor: int
    refunded_minor: int
    gateway: GatewayBook


class PaymentDesk(HttpClient):
    """Each method acts as a caller with the scope for it; all raise RejectedError and ShopError."""

    async def pay(self, order: Order, key: str) -> Receipt:
        """Pay the whole order, once for each `key`; returns when the gateway has decided."""
        token = self.badges.buyer(order.buyer_id)
        body = {
            "order_id": order.order_id,
            "amount_minor": order.total_minor,
            "currency": order.currency,
            "method": METHOD,
        }
        try:
            answer = await self.post("/payments", token, body, key)
        except RejectedError as error:
            if error.problem != PAYMENT_DECLINED:
                raise
            declined = await self.payment(str(error.members["payment_id"]), token)
            return Receipt(await self._decided(declined, token), error.replayed)
        return Receipt(await self._decided(Payment.of(answer.json()), token), is_replayed(answer))

    async def refund(self, payment_id: str, amount_minor: int, reason: str, key: str) -> Refund:
        """Give a part back, or all that is left, once for each `key`."""
        body = {"amount_minor": amount_minor, "reason": reason}
        answer = await self.post(f"/payments/{payment_id}/refunds", self.badges.operator, body, key)
        return Refund.of(answer.json())

    async def payment(self, payment_id: str, token: str) -> Payment:
        return Payment.of(await self.get(f"/payments/{payment_id}", token))

    async def payments(self) -> dict[str, Payment]:
        """Those of all buyers, by id."""
        pages = await self.all_pages("/payments", self.badges.operator)
        return {members["payment_id"]: Payment.of(members) for members in pages}

    async def refunds(self) -> dict[str, Refund]:
        """Those of all buyers, by id."""
        pages = await self.all_pages("/refunds", self.badges.operator)
        return {members["refund_id"]: Refund.of(members) for members in pages}

    async def statistics(self) -> PaymentStatistics:
        answer = await self.get("/statistics", self.badges.operator)
        return PaymentStatistics(
            payments=answer["payments"],
            captured_minor=answer["captured_minor"],
            refunded_minor=answer["refunded_minor"],
            gateway=GatewayBook(**answer["gateway"]),
        )

    async def _decided(self, payment: Payment, token: str) -> Payment:
        seen = payment

        async def decided() -> bool:
            nonlocal seen
            seen = await self.payment(payment.payment_id, token)
            return seen.status != CREATED

        if payment.status != CREATED:
            return payment
        timeout_s = max(DECISION_TIMEOUT_S, self.give_up_after_s)
        try:
            await eventually(decided, timeout_s, interval_s=LOOK_INTERVAL_S)
        except NotInTimeError:
            raise ShopError(
                f"payment {payment.payment_id} of order {payment.order_id} is still not decided after {timeout_s:g} s"
            ) from None
        return seen


async def in_time(command: Awaitable[Order], otherwise: str) -> bool:
    """Whether the order took the command; on a slow machine it may have reached the status `otherwise` before.

    Raises ShopError for any other rejection.
    """
    try:
        await command
    except RejectedError as error:
        if error.members.get("order_status") != otherwise:
            raise
        return False
    return True

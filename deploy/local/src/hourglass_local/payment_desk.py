"""What a buyer can ask of payments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hourglass_local.http_client import REPLAYED, HttpClient
from hourglass_local.shop import Order

METHOD = "card"
CREATED, CAPTURED, REFUNDED = "CREATED", "CAPTURED", "REFUNDED"
ORDER_CLOSED = "order-closed"  # the problem of an order that can no longer be paid


@dataclass(frozen=True, slots=True)
class Payment:
    """Times are wall-clock milliseconds."""

    payment_id: str
    order_id: str
    amount_minor: int
    status: str
    captured_at_ms: int | None

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
    """An answer to a request to pay; `replayed` if an earlier request with the same key had made the payment."""

    payment: Payment
    replayed: bool


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
    """Methods raise RefusedError and ShopError."""

    async def pay(self, order: Order, key: str) -> Receipt:
        """Pay the whole order, once for each `key`; a payment in progress is asked for until it is decided."""
        body = {
            "order_id": order.order_id,
            "buyer_id": order.buyer_id,
            "amount_minor": order.total_minor,
            "currency": order.currency,
            "method": METHOD,
        }
        answer = await self.post("/payments", body, key)
        return Receipt(Payment.of(answer.json()), answer.headers.get(REPLAYED) == "true")

    async def payments(self) -> dict[str, Payment]:
        """All, by id."""
        return {members["payment_id"]: Payment.of(members) for members in await self.all_pages("/payments")}

    async def statistics(self) -> PaymentStatistics:
        answer = await self.get("/statistics")
        return PaymentStatistics(
            payments=answer["payments"],
            captured_minor=answer["captured_minor"],
            refunded_minor=answer["refunded_minor"],
            gateway=GatewayBook(**answer["gateway"]),
        )

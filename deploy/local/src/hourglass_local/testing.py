"""Orders, payments and books that agree, for tests to break."""

from __future__ import annotations

from dataclasses import replace

from hourglass_local.books import Books
from hourglass_local.buyers import PaymentAttempt
from hourglass_local.http_client import AccessTokens
from hourglass_local.plan import Pays, PlannedOrder
from hourglass_local.shop import (
    CLOSED,
    CREATED,
    PENDING,
    REFUNDED,
    GatewayBook,
    Order,
    Payment,
    PaymentStatistics,
    Product,
    Refund,
)

EXPIRY_MS = 10_000
PRICE_MINOR = 93_300
SEAT = Product("G1-first", "Seat", PRICE_MINOR, "CNY", 50)
BEFORE = {SEAT.product_id: SEAT}
BADGES = AccessTokens([("test", 32 * "s")])


def closed(order_id: str, late_ms: int = 20) -> Order:
    """An order of two seats that was not paid in time."""
    return Order(
        order_id=order_id,
        buyer_id="buyer-1",
        status=CLOSED,
        items={SEAT.product_id: 2},
        total_minor=2 * PRICE_MINOR,
        currency="CNY",
        expires_at_ms=EXPIRY_MS,
        closed_at_ms=EXPIRY_MS + late_ms,
        payment_id=None,
    )


def paid(order_id: str, payment_id: str) -> Order:
    return replace(closed(order_id), status="AWAITING_SHIPMENT", closed_at_ms=None, payment_id=payment_id)


def pending(order_id: str) -> Order:
    return replace(closed(order_id), status=PENDING, closed_at_ms=None)


def payment(
    payment_id: str, order_id: str, status: str = "CAPTURED", captured_at_ms: int | None = EXPIRY_MS
) -> Payment:
    return Payment(payment_id, order_id, 2 * PRICE_MINOR, status, None if status == CREATED else captured_at_ms)


def attempt(pays: Pays, told: Payment | None, *, replayed: bool = False) -> PaymentAttempt:
    return PaymentAttempt(PlannedOrder("buyer-1", {SEAT.product_id: 2}, "key", pays, 0), told, replayed)


def books(orders: list[Order], payments: list[Payment], parts: dict[str, int] | None = None) -> Books:
    """With the statistics that follow. Refunded are payments with that status, and `parts` (payment id -> money)."""
    whole = {one.payment_id: one.amount_minor for one in payments if one.status == REFUNDED}
    refunds = {
        f"refund-{payment_id}": Refund(f"refund-{payment_id}", payment_id, amount_minor, REFUNDED)
        for payment_id, amount_minor in (whole | (parts or {})).items()
    }
    captured = [one.amount_minor for one in payments if one.took_money]
    sums = sum(captured), sum(refund.amount_minor for refund in refunds.values())
    statuses = [one.status for one in payments]
    sold = sum(order.items[SEAT.product_id] for order in orders if order.is_paid)
    reserved = sum(order.items[SEAT.product_id] for order in orders if order.status == PENDING)
    seat = replace(SEAT, available=SEAT.available - sold - reserved, reserved=reserved, sold=sold)
    return Books(
        orders={order.order_id: order for order in orders},
        products={SEAT.product_id: seat},
        payments={one.payment_id: one for one in payments},
        refunds=refunds,
        payment_statistics=PaymentStatistics(
            {status: statuses.count(status) for status in statuses},
            *sums,
            GatewayBook(*sums, len(captured), len(refunds)),
        ),
    )


# One order that was paid, one that was not paid, and one that was paid too late.
GOOD = books(
    [paid("a", "pay-a"), closed("b", 40), closed("c")],
    [payment("pay-a", "a"), payment("pay-c", "c", REFUNDED, EXPIRY_MS + 5)],
)

"""Money that arrived for an order, and money that has to go back."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Payment:
    """Money that arrived for an order: minor units, and wall-clock milliseconds."""

    payment_id: str
    order_id: str
    amount_minor: int
    currency: str
    paid_at_ms: int


@dataclass(frozen=True, slots=True)
class RefundedPayment:
    """Money of a payment that went back: `refunded_minor` is all of it so far, by however many refunds."""

    payment_id: str
    order_id: str
    refunded_minor: int


class RefundReason(enum.StrEnum):
    """Why the money goes back."""

    ORDER_CLOSED = "order-closed"
    ALREADY_PAID = "already-paid"
    WRONG_AMOUNT = "wrong-amount"
    ORDER_CANCELLED = "order-cancelled"  # by its seller, after it was paid


@dataclass(frozen=True, slots=True)
class RefundRequest:
    """A payment whose money has to go back."""

    payment: Payment
    reason: RefundReason

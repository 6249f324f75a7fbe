"""What a payment does to an order: it pays for it, or it has to go back.

Invariants: an order is paid by one payment at most; a payment pays, or its money goes back, and never both. Each answer
but PAY is final: an order that is closed or paid stays so, and an amount does not change.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from orders.domain.order import Order
from orders.domain.order_status import OrderStatus


@dataclass(frozen=True, slots=True)
class Payment:
    """Money that arrived for an order: minor units, and wall-clock milliseconds."""

    payment_id: str
    order_id: str
    amount_minor: int
    currency: str
    paid_at_ms: int


class RefundReason(enum.StrEnum):
    """Why the money goes back."""

    ORDER_CLOSED = "order-closed"
    ALREADY_PAID = "already-paid"
    WRONG_AMOUNT = "wrong-amount"


@dataclass(frozen=True, slots=True)
class RefundRequest:
    """A payment whose money has to go back."""

    payment: Payment
    reason: RefundReason


class Verdict(enum.Enum):
    """What else may come of a payment."""

    PAY = "pay"
    IGNORE = "ignore"


def judge(order: Order, payment: Payment) -> Verdict | RefundReason:
    """PAY, IGNORE for the payment that has paid the order already, or the reason why the money goes back."""
    if order.payment_id == payment.payment_id:
        return Verdict.IGNORE
    if order.status is OrderStatus.CLOSED:
        return RefundReason.ORDER_CLOSED
    if order.payment_id is not None:
        return RefundReason.ALREADY_PAID
    if (payment.amount_minor, payment.currency) != (order.total_minor, order.currency):
        return RefundReason.WRONG_AMOUNT
    return Verdict.PAY

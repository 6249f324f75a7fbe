"""What a payment does to an order: it pays for it, or it has to go back.

Invariants: an order is paid by one payment at most; a payment pays, or its money goes back. Both happen to one payment
only when the seller cancels the order that it has paid, and then the money goes back once. Each answer but PAY is
final: an order that is closed or paid is never unpaid again, and an amount does not change.
"""

from __future__ import annotations

import enum

from orders.domain.order import Order
from orders.domain.order_status import OrderStatus
from orders.domain.payment import Payment, RefundReason


class Verdict(enum.Enum):
    """What else may come of a payment."""

    PAY = "pay"
    IGNORE = "ignore"


def judge(order: Order, payment: Payment) -> Verdict | RefundReason:
    """PAY, IGNORE for the payment that has paid the order already, or the reason why the money goes back.

    An order that was cancelled after it was paid asked for its money when it was closed: its payment is ignored here.
    """
    if order.payment_id == payment.payment_id:
        return Verdict.IGNORE
    if order.status is OrderStatus.CLOSED:
        return RefundReason.ORDER_CLOSED
    if order.payment_id is not None:
        return RefundReason.ALREADY_PAID
    if (payment.amount_minor, payment.currency) != (order.total_minor, order.currency):
        return RefundReason.WRONG_AMOUNT
    return Verdict.PAY

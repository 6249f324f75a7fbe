"""A refund: the whole amount of a payment goes back.

Invariant: a payment has at most one refund, whose id follows from the payment's, so that whoever asks the gateway
again asks for the same refund.
"""

from __future__ import annotations

from dataclasses import dataclass

from payments.domain.errors import RefundMismatchError
from payments.domain.payment import Payment


@dataclass(frozen=True, slots=True)
class RefundRequest:
    """What `order-events`/`refund-requested` asks for."""

    order_id: str
    payment_id: str
    amount_minor: int
    currency: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refund:
    """The intent to give money back; done when its payment is REFUNDED."""

    refund_id: str
    payment_id: str
    amount_minor: int
    currency: str
    reason: str
    requested_at_ms: int


def refund_id_of(payment_id: str) -> str:
    """The id of the payment's one refund."""
    return f"refund-{payment_id}"


def refund_of(payment: Payment, request: RefundRequest, now_ms: int) -> Refund:
    """The refund that the request asks for. Raises RefundMismatchError if it is not about this payment's money."""
    wanted = (request.order_id, request.amount_minor, request.currency)
    if wanted != (payment.order_id, payment.amount_minor, payment.currency):
        raise RefundMismatchError(payment.payment_id)
    return Refund(
        refund_id=refund_id_of(payment.payment_id),
        payment_id=payment.payment_id,
        amount_minor=payment.amount_minor,
        currency=payment.currency,
        reason=request.reason,
        requested_at_ms=now_ms,
    )

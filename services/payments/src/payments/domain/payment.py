"""A payment: who pays how much for which order, and where it stands.

Invariants: everything but the status, its times and the decline reason stays as it was requested; captured_at_ms is set
exactly when the money was taken, refunded_at_ms exactly when it was given back, decline_reason exactly when the gateway
said no. An order has at most one payment that is not DECLINED, so that it is paid once at most.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from payments.domain.payment_status import ChangeReason, PaymentStatus, next_status

_TOOK_MONEY = frozenset({PaymentStatus.CAPTURED, PaymentStatus.REFUNDED})


class PaymentMethod(enum.StrEnum):
    """How a buyer pays."""

    CARD = "card"
    WALLET = "wallet"
    BANK_TRANSFER = "bank_transfer"


@dataclass(frozen=True, slots=True)
class StatusChange:
    """One row of a payment's history; `old_status` is None for the first."""

    payment_id: str
    old_status: PaymentStatus | None
    new_status: PaymentStatus
    reason: ChangeReason
    at_ms: int


@dataclass(frozen=True, slots=True)
class PaymentRequest:
    """What a buyer asks for: pay this order, so much, in this way."""

    order_id: str
    buyer_id: str
    amount_minor: int
    currency: str
    method: PaymentMethod


@dataclass(frozen=True, slots=True)
class Payment:
    """A payment; times are wall-clock milliseconds, money is in the currency's minor unit."""

    payment_id: str
    order_id: str
    buyer_id: str
    amount_minor: int
    currency: str
    method: PaymentMethod
    status: PaymentStatus
    created_at_ms: int
    captured_at_ms: int | None = None
    refunded_at_ms: int | None = None
    decline_reason: str | None = None

    def __post_init__(self) -> None:
        if self.amount_minor < 1:
            raise ValueError(f"payment {self.payment_id!r} is of {self.amount_minor}; at least 1 can be paid")
        if (
            (self.captured_at_ms is not None) != (self.status in _TOOK_MONEY)
            or (self.refunded_at_ms is not None) != (self.status is PaymentStatus.REFUNDED)
            or (self.decline_reason is not None) != (self.status is PaymentStatus.DECLINED)
        ):
            raise ValueError(f"payment {self.payment_id!r} is {self.status}, and its times or its reason are not")

    def captured(self, at_ms: int) -> tuple[Payment, StatusChange]:
        """The payment after the gateway took the money at `at_ms`. Raises IllegalTransitionError."""
        change = self._change(ChangeReason.CAPTURED, at_ms)
        return replace(self, status=change.new_status, captured_at_ms=at_ms), change

    def declined(self, decline_reason: str, at_ms: int) -> tuple[Payment, StatusChange]:
        """The payment after the gateway said no. Raises IllegalTransitionError."""
        change = self._change(ChangeReason.DECLINED, at_ms)
        return replace(self, status=change.new_status, decline_reason=decline_reason), change

    def refunded(self, at_ms: int) -> tuple[Payment, StatusChange]:
        """The payment after the gateway gave the money back at `at_ms`. Raises IllegalTransitionError."""
        change = self._change(ChangeReason.REFUNDED, at_ms)
        return replace(self, status=change.new_status, refunded_at_ms=at_ms), change

    def as_answered(self) -> Payment:
        """The payment as its request was answered once it was decided: what a repeated request is told."""
        if self.status is not PaymentStatus.REFUNDED:
            return self
        return replace(self, status=PaymentStatus.CAPTURED, refunded_at_ms=None)

    def _change(self, reason: ChangeReason, at_ms: int) -> StatusChange:
        return StatusChange(self.payment_id, self.status, next_status(self.status, reason), reason, at_ms)


def begin(payment_id: str, request: PaymentRequest, now_ms: int) -> tuple[Payment, StatusChange]:
    """The intent to pay, recorded before any money moves, and the first row of its history."""
    payment = Payment(
        payment_id=payment_id,
        order_id=request.order_id,
        buyer_id=request.buyer_id,
        amount_minor=request.amount_minor,
        currency=request.currency,
        method=request.method,
        status=PaymentStatus.CREATED,
        created_at_ms=now_ms,
    )
    return payment, StatusChange(payment_id, None, payment.status, ChangeReason.REQUESTED, now_ms)

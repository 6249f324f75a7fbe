"""A payment: its states and the changes between them, its buyer, amount, order and status."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from types import MappingProxyType

from payments.domain.errors import IllegalTransitionError, NotCapturedYetError


class PaymentStatus(enum.StrEnum):
    """Where a payment stands. CREATED is the intent: the gateway may have moved the money already, or never will.

    Invariants: a status changes only by a row of TRANSITIONS; REFUNDED has no row and is final. DECLINED ends a payment
    for its buyer and for this service, unless the gateway takes the money all the same (ADR 144).
    """

    CREATED = "CREATED"
    CAPTURED = "CAPTURED"
    DECLINED = "DECLINED"
    PARTIALLY_REFUNDED = "PARTIALLY_REFUNDED"
    REFUNDED = "REFUNDED"


# The money was taken, whatever became of it since.
TOOK_MONEY = frozenset({PaymentStatus.CAPTURED, PaymentStatus.PARTIALLY_REFUNDED, PaymentStatus.REFUNDED})


class ChangeReason(enum.StrEnum):
    """Why a payment changed its status; kept in its history."""

    REQUESTED = "requested"
    CAPTURED = "captured"
    DECLINED = "declined"
    PARTIALLY_REFUNDED = "partially refunded"  # something is left to give back
    REFUNDED = "refunded"  # nothing is left


TRANSITIONS = MappingProxyType(
    {
        (PaymentStatus.CREATED, ChangeReason.CAPTURED): PaymentStatus.CAPTURED,
        (PaymentStatus.CREATED, ChangeReason.DECLINED): PaymentStatus.DECLINED,
        (PaymentStatus.DECLINED, ChangeReason.CAPTURED): PaymentStatus.CAPTURED,
        (PaymentStatus.CAPTURED, ChangeReason.PARTIALLY_REFUNDED): PaymentStatus.PARTIALLY_REFUNDED,
        (PaymentStatus.CAPTURED, ChangeReason.REFUNDED): PaymentStatus.REFUNDED,
        (PaymentStatus.PARTIALLY_REFUNDED, ChangeReason.PARTIALLY_REFUNDED): PaymentStatus.PARTIALLY_REFUNDED,
        (PaymentStatus.PARTIALLY_REFUNDED, ChangeReason.REFUNDED): PaymentStatus.REFUNDED,
    }
)


def next_status(status: PaymentStatus, reason: ChangeReason) -> PaymentStatus:
    """The status after `reason` happened to a payment in `status`. Raises IllegalTransitionError if it cannot."""
    try:
        return TRANSITIONS[status, reason]
    except KeyError:
        raise IllegalTransitionError("payment", status, reason) from None


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
    """A payment; times are wall-clock milliseconds, money is in the currency's minor unit.

    `traceparent` is its order's; nothing here looks into it.

    Invariants: everything but the status, its times, the decline reason and the sums of its refunds stays as it was
    requested; captured_at_ms is set exactly when the money was taken, refunded_at_ms exactly when all of it was given
    back, decline_reason when the payment was declined, also if the money was taken afterwards. 0 <= refunded_minor <=
    refund_requested_minor <= amount_minor, and the status says whether nothing, a part or all was given back. An order
    has at most one payment that was never declined.
    """

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
    refund_requested_minor: int = 0
    refunded_minor: int = 0
    traceparent: str | None = None

    def __post_init__(self) -> None:
        if self.amount_minor < 1:
            raise ValueError(f"payment {self.payment_id!r} is of {self.amount_minor}; at least 1 can be paid")
        if (
            (self.captured_at_ms is not None) != (self.status in TOOK_MONEY)
            or (self.refunded_at_ms is not None) != (self.status is PaymentStatus.REFUNDED)
            or (self.decline_reason is None and self.status is PaymentStatus.DECLINED)
            or (self.decline_reason is not None and self.status is PaymentStatus.CREATED)
        ):
            raise ValueError(f"payment {self.payment_id!r} is {self.status}, and its times or its reason are not")
        if (
            not 0 <= self.refunded_minor <= self.refund_requested_minor <= self.amount_minor
            or (self.refund_requested_minor > 0 and self.status not in TOOK_MONEY)
            or (self.refunded_minor == self.amount_minor) != (self.status is PaymentStatus.REFUNDED)
            or (0 < self.refunded_minor < self.amount_minor) != (self.status is PaymentStatus.PARTIALLY_REFUNDED)
        ):
            raise ValueError(f"payment {self.payment_id!r} is {self.status}, and the sums of its refunds are not")

    @property
    def refundable_minor(self) -> int:
        """The amount without a refund request."""
        return self.amount_minor - self.refund_requested_minor

    def captured(self, at_ms: int) -> tuple[Payment, StatusChange]:
        """The payment after the gateway took the money at `at_ms`, late or not. Raises IllegalTransitionError."""
        change = self._change(ChangeReason.CAPTURED, at_ms)
        return replace(self, status=change.new_status, captured_at_ms=at_ms), change

    def declined(self, decline_reason: str, at_ms: int) -> tuple[Payment, StatusChange]:
        """The payment after the gateway said no. Raises IllegalTransitionError."""
        change = self._change(ChangeReason.DECLINED, at_ms)
        return replace(self, status=change.new_status, decline_reason=decline_reason), change

    def refunded(self, amount_minor: int, at_ms: int) -> tuple[Payment, StatusChange]:
        """The payment after the gateway gave so much of what was asked for back at `at_ms`.

        Raises IllegalTransitionError, and ValueError for more than was asked for.
        """
        refunded_minor = self.refunded_minor + amount_minor
        is_whole = refunded_minor == self.amount_minor
        change = self._change(ChangeReason.REFUNDED if is_whole else ChangeReason.PARTIALLY_REFUNDED, at_ms)
        refunded_at_ms = at_ms if is_whole else None
        changed = replace(self, status=change.new_status, refunded_minor=refunded_minor, refunded_at_ms=refunded_at_ms)
        return changed, change

    def require_captured(self) -> None:
        """Return if money of this payment can go back.

        Raises NotCapturedYetError while it is undecided, IllegalTransitionError when it was declined.
        """
        if self.status is PaymentStatus.CREATED:
            raise NotCapturedYetError(self.payment_id)
        if self.status is PaymentStatus.DECLINED:
            next_status(self.status, ChangeReason.REFUNDED)

    def as_answered(self) -> Payment:
        """The payment as its request was answered once it was decided: what a repeated request is told."""
        if self.status not in TOOK_MONEY:
            return self
        return replace(
            self, status=PaymentStatus.CAPTURED, refunded_at_ms=None, refund_requested_minor=0, refunded_minor=0
        )

    def _change(self, reason: ChangeReason, at_ms: int) -> StatusChange:
        return StatusChange(self.payment_id, self.status, next_status(self.status, reason), reason, at_ms)


def begin(
    payment_id: str, request: PaymentRequest, now_ms: int, traceparent: str | None = None
) -> tuple[Payment, StatusChange]:
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
        traceparent=traceparent,
    )
    return payment, StatusChange(payment_id, None, payment.status, ChangeReason.REQUESTED, now_ms)

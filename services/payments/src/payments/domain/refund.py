"""A refund: a part of a payment's money, or all of it, goes back.

Invariants: the refunds of a payment are together never more than it took (Payment.refund_requested_minor counts them);
a refund's id follows from its request, so that a repeated request is for the same refund. A status changes only by a
row of TRANSITIONS. What is asked for is never given up: REFUNDED is the only end; a refund that the gateway rejects is
FAILED until a person has it tried again, under the same id, and its money counts as asked for meanwhile.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, replace
from types import MappingProxyType

from payments.domain.errors import IllegalTransitionError, RefundMismatchError, RefundTooLargeError
from payments.domain.payment import Payment


class RefundStatus(enum.StrEnum):
    """Where a refund stands. REQUESTED is the intent: the gateway may have given the money back already."""

    REQUESTED = "REQUESTED"
    FAILED = "FAILED"  # the gateway has rejected it; a person has to look
    REFUNDED = "REFUNDED"


class RefundChange(enum.StrEnum):
    """What happens to a refund."""

    REFUNDED = "refunded"
    FAILED = "failed"
    RETRIED = "retried"


# A gateway that has rejected a refund may tell all the same that it was made: then it was.
TRANSITIONS = MappingProxyType(
    {
        (RefundStatus.REQUESTED, RefundChange.REFUNDED): RefundStatus.REFUNDED,
        (RefundStatus.REQUESTED, RefundChange.FAILED): RefundStatus.FAILED,
        (RefundStatus.FAILED, RefundChange.RETRIED): RefundStatus.REQUESTED,
        (RefundStatus.FAILED, RefundChange.REFUNDED): RefundStatus.REFUNDED,
    }
)


@dataclass(frozen=True, slots=True)
class WholeRefundRequest:
    """What `order-events`/`refund-requested` asks for: all the money of a payment."""

    order_id: str
    payment_id: str
    amount_minor: int
    currency: str
    reason: str


@dataclass(frozen=True, slots=True)
class RefundRequest:
    """What an operator asks for: so much of a payment's money."""

    payment_id: str
    amount_minor: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refund:
    """So much money that goes back; times are wall-clock milliseconds, money is in the currency's minor unit.

    `requested_by` is the caller's subject, or the consumer group; `failure` is what the gateway said to a refund that
    is FAILED.
    """

    refund_id: str
    payment_id: str
    amount_minor: int
    currency: str
    reason: str
    requested_by: str
    requested_at_ms: int
    status: RefundStatus = RefundStatus.REQUESTED
    refunded_at_ms: int | None = None
    failure: str | None = None

    def __post_init__(self) -> None:
        if self.amount_minor < 1:
            raise ValueError(f"refund {self.refund_id!r} is of {self.amount_minor}; at least 1 can be given back")
        if (self.failure is not None) != (self.status is RefundStatus.FAILED):
            raise ValueError(f"refund {self.refund_id!r} is {self.status}, and failure is {self.failure!r}")
        if (self.refunded_at_ms is not None) != (self.status is RefundStatus.REFUNDED):
            raise ValueError(f"refund {self.refund_id!r} is {self.status}, and refunded_at_ms is {self.refunded_at_ms}")

    def refunded(self, at_ms: int) -> Refund:
        """The refund after the gateway gave the money back at `at_ms`. Raises IllegalTransitionError."""
        return replace(self, status=self._after(RefundChange.REFUNDED), refunded_at_ms=at_ms, failure=None)

    def failed(self, failure: str) -> Refund:
        """The refund after the gateway has rejected it. Raises IllegalTransitionError."""
        return replace(self, status=self._after(RefundChange.FAILED), failure=failure)

    def retried(self) -> Refund:
        """The refund when it is to be tried again. Raises IllegalTransitionError."""
        return replace(self, status=self._after(RefundChange.RETRIED), failure=None)

    def _after(self, change: RefundChange) -> RefundStatus:
        try:
            return TRANSITIONS[self.status, change]
        except KeyError:
            raise IllegalTransitionError("refund", self.status, change) from None


def whole_refund_id(payment_id: str) -> str:
    """The id of the one refund that orders asks for."""
    return f"refund-{payment_id}"


def refund_id_of_key(subject: str, key: str) -> str:
    """The id of the one refund that an operator's idempotency key makes; it is never forgotten, as keys are."""
    return "refund-" + hashlib.sha256(f"{subject}/{key}".encode()).hexdigest()[:40]


def rest_of(payment: Payment, request: WholeRefundRequest, requested_by: str, now_ms: int) -> Refund | None:
    """The refund of the rest that has no refund request yet; None if there is no rest.

    Raises RefundMismatchError if the request is not about this payment's money, NotCapturedYetError, and
    IllegalTransitionError when the payment was declined.
    """
    payment.require_captured()
    wanted = (request.order_id, request.amount_minor, request.currency)
    if wanted != (payment.order_id, payment.amount_minor, payment.currency):
        raise RefundMismatchError(payment.payment_id)
    if payment.refundable_minor == 0:
        return None
    return Refund(
        refund_id=whole_refund_id(payment.payment_id),
        payment_id=payment.payment_id,
        amount_minor=payment.refundable_minor,
        currency=payment.currency,
        reason=request.reason,
        requested_by=requested_by,
        requested_at_ms=now_ms,
    )


def part_of(payment: Payment, request: RefundRequest, refund_id: str, requested_by: str, now_ms: int) -> Refund:
    """The refund that an operator asks for.

    Raises RefundTooLargeError, NotCapturedYetError, and IllegalTransitionError when the payment was declined.
    """
    payment.require_captured()
    if request.amount_minor > payment.refundable_minor:
        raise RefundTooLargeError(payment.payment_id, request.amount_minor, payment.refundable_minor)
    return Refund(
        refund_id=refund_id,
        payment_id=payment.payment_id,
        amount_minor=request.amount_minor,
        currency=payment.currency,
        reason=request.reason,
        requested_by=requested_by,
        requested_at_ms=now_ms,
    )

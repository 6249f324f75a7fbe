"""A refund: so much of a captured charge's money, given back once.

Invariants: its terms stay as they were asked for; it leaves PENDING once; refunded_at_ms is set exactly when it is
REFUNDED. The refunds of a charge, pending ones too, are never more than the charge.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class RefundStatus(enum.StrEnum):
    """Where a refund stands."""

    PENDING = "pending"
    REFUNDED = "refunded"


@dataclass(frozen=True, slots=True)
class RefundTerms:
    """What is asked for; money is in the currency's minor unit."""

    refund_id: str
    charge_id: str
    amount_minor: int
    currency: str


@dataclass(frozen=True, slots=True)
class Refund:
    """A refund; times are wall-clock milliseconds. The money goes back at `due_at_ms`, or soon after.

    `traceparent` is where it was asked for, for those who watch the system; nothing here looks into it.
    """

    terms: RefundTerms
    created_at_ms: int
    due_at_ms: int
    status: RefundStatus = RefundStatus.PENDING
    refunded_at_ms: int | None = None
    traceparent: str | None = None

    def __post_init__(self) -> None:
        if (self.refunded_at_ms is None) != (self.status is RefundStatus.PENDING):
            raise ValueError(f"refund {self.refund_id!r} is {self.status}, and its time is not")

    @property
    def refund_id(self) -> str:
        return self.terms.refund_id

    def refunded(self, at_ms: int) -> Refund:
        """The PENDING refund after the money went back."""
        return replace(self, status=RefundStatus.REFUNDED, refunded_at_ms=at_ms)

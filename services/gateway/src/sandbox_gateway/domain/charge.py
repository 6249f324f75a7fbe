"""A charge: so much of a buyer's money, taken or refused once.

Invariants: its terms stay as they were asked for; it leaves PENDING once, and what was decided stays; decided_at_ms is
set exactly when it is decided, decline_reason exactly when it is DECLINED.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class ChargeStatus(enum.StrEnum):
    """Where a charge stands."""

    PENDING = "pending"
    CAPTURED = "captured"
    DECLINED = "declined"


@dataclass(frozen=True, slots=True)
class ChargeTerms:
    """What is asked for; money is in the currency's minor unit."""

    charge_id: str
    order_id: str
    amount_minor: int
    currency: str
    method: str


@dataclass(frozen=True, slots=True)
class Charge:
    """A charge; times are wall-clock milliseconds. It is decided at `due_at_ms`, or soon after.

    `traceparent` is where it was asked for, for those who watch the system; nothing here looks into it.
    """

    terms: ChargeTerms
    created_at_ms: int
    due_at_ms: int
    status: ChargeStatus = ChargeStatus.PENDING
    decided_at_ms: int | None = None
    decline_reason: str | None = None
    traceparent: str | None = None

    def __post_init__(self) -> None:
        if (self.decided_at_ms is None) != (self.status is ChargeStatus.PENDING) or (self.decline_reason is None) == (
            self.status is ChargeStatus.DECLINED
        ):
            raise ValueError(f"charge {self.charge_id!r} is {self.status}, and its time or its reason are not")

    @property
    def charge_id(self) -> str:
        return self.terms.charge_id

    def decided(self, decline_reason: str | None, at_ms: int) -> Charge:
        """The PENDING charge after its decision: CAPTURED, or DECLINED for a reason."""
        status = ChargeStatus.CAPTURED if decline_reason is None else ChargeStatus.DECLINED
        return replace(self, status=status, decided_at_ms=at_ms, decline_reason=decline_reason)

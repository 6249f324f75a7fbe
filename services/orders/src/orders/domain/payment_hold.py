"""A payment's hold on its order: while it lasts, the order is not closed under the payment's hands.

A hold begins before the order's time to pay is over, and ends by itself: `lifetime_ms` after it was last taken, and at
the latest `past_expiry_max_ms` after the order's expiry, however often its payment takes it again.
"""

from __future__ import annotations

from dataclasses import dataclass

HOLD_MS = (
    30_000  # payments waits 10 s for the gateway, and takes a hold again each time it asks what became of a charge
)
PAST_EXPIRY_MAX_MS = 600_000


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """How long an order may be held."""

    lifetime_ms: int = HOLD_MS
    past_expiry_max_ms: int = PAST_EXPIRY_MAX_MS


DEFAULT_HOLD_LIMITS = HoldLimits()


@dataclass(frozen=True, slots=True)
class PaymentHold:
    """Which payment holds the order, until which wall-clock millisecond; kept when it is over, as the last one."""

    payment_id: str
    until_ms: int

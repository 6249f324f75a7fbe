"""A payment's hold on its order: while it lasts, the order is not closed under the payment's hands.

A hold begins before the order's time to pay is over, and ends by itself: HOLD_MS after it was last taken, and at the
latest PAST_EXPIRY_MAX_MS after the order's expiry, however often its payment takes it again.
"""

from __future__ import annotations

from dataclasses import dataclass

HOLD_MS = (
    30_000  # payments waits 10 s for the gateway, and takes a hold again each time it asks what became of a charge
)
PAST_EXPIRY_MAX_MS = 600_000


@dataclass(frozen=True, slots=True)
class PaymentHold:
    """Which payment holds the order, until which wall-clock millisecond; kept when it is over, as the last one."""

    payment_id: str
    until_ms: int

"""The port to whoever counts what happens to payments; the database, and not a counter, is what decides anything."""

from __future__ import annotations

from typing import Protocol

from payments.domain.payment import Payment
from payments.domain.refund import Refund


class PaymentMeter(Protocol):
    """Told once for each change that this process has made, after it was committed."""

    def settled(self, payment: Payment, now_ms: int) -> None:
        """The payment was captured or declined; `now_ms` is when this was written down."""

    def refunded(self, refund: Refund) -> None:
        """The refund's money went back."""


class NotMetered:
    """Implements `PaymentMeter`: nobody counts."""

    def settled(self, payment: Payment, now_ms: int) -> None:
        """Forget it."""

    def refunded(self, refund: Refund) -> None:
        """Forget it."""


NOT_METERED = NotMetered()

"""The port to orders, which is asked before money is taken to hold the order, so that it is not closed meanwhile
(ADR 122).

Invariant: the gateway is asked to charge only after orders has said, a moment before, that the order is held for this
very payment. A hold ends by itself, and is taken again while the payment is undecided.
"""

from __future__ import annotations

from typing import Protocol

from payments.domain.payment import Payment


class OrderHolds(Protocol):
    """No call is made inside a unit of work."""

    async def take(self, payment: Payment) -> None:
        """Hold the payment's order, or hold it for longer. Raises OrderNotPayableError, OrdersUnavailableError."""

    async def release(self, payment: Payment) -> None:
        """Let the order of a payment that captured nothing go. Raises OrdersUnavailableError: it will end then."""

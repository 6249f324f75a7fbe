"""The port to the payment gateway: the company that moves the money, and that keeps the true book of it.

Invariants that every gateway holds: an id names one capture or one refund for ever, so that asking again changes
nothing and answers the same; no payment gives back more than it took. No call is made inside a database transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from osenv import Clock
from osenv.clock import timeout
from payments.domain.errors import GatewayUnavailableError
from payments.domain.payment import Payment
from payments.domain.refund import Refund
from servicekit.health import OK

PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Captured:
    """The money was taken, at this wall-clock moment of the gateway; the same moment each time one asks."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Declined:
    """The money will never be taken under this payment id."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refunded:
    """The money was given back, at this wall-clock moment of the gateway; the same moment each time one asks."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class GatewayBook:
    """What the gateway's own book says: sums in minor units, and how many captures and refunds there were."""

    captured_minor: int
    refunded_minor: int
    captures: int
    refunds: int


class PaymentGateway(Protocol):
    """Every method raises GatewayUnavailableError when there is no answer: then nobody knows whether it happened."""

    async def capture(self, payment_id: str, amount_minor: int, currency: str) -> Captured | Declined:
        """Take the money. Raises GatewayRefusedError if the id was used for something else."""

    async def refund(self, refund_id: str, payment_id: str, amount_minor: int, currency: str) -> Refunded:
        """Give money of a captured payment back. Raises GatewayRefusedError if that makes no sense."""

    async def book(self) -> GatewayBook:
        """The sums of everything that ever happened."""


class PatientGateway:
    """A gateway that is waited for only so long; what it does after that is found out by asking again."""

    def __init__(self, gateway: PaymentGateway, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock

    async def capture(self, payment: Payment) -> Captured | Declined:
        """Ask for the payment's one capture."""
        async with self._patience():
            return await self._gateway.capture(payment.payment_id, payment.amount_minor, payment.currency)

    async def refund(self, refund: Refund) -> Refunded:
        """Ask for the payment's one refund."""
        async with self._patience():
            return await self._gateway.refund(refund.refund_id, refund.payment_id, refund.amount_minor, refund.currency)

    async def book(self) -> GatewayBook:
        """Ask for the sums."""
        async with self._patience():
            return await self._gateway.book()

    async def health(self) -> str:
        """ "ok", or what is wrong; never raises."""
        try:
            await self.book()
        except GatewayUnavailableError as error:
            return str(error)
        return OK

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        try:
            async with timeout(self._clock, PATIENCE_S):
                yield
        except TimeoutError as error:
            raise GatewayUnavailableError(f"the gateway gave no answer within {PATIENCE_S:.0f} s") from error

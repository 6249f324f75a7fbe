"""The ports of payments to the gateway and to orders."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, Self

from osenv import Clock
from osenv.clock import timeout
from payments.domain.errors import GatewayUnavailableError
from payments.domain.payment import Payment, PaymentMethod
from payments.domain.refund import Refund

PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class ChargeRequest:
    """Take so much of the buyer's money; the payment's id is the charge's."""

    payment_id: str
    order_id: str
    amount_minor: int
    currency: str
    method: PaymentMethod

    @classmethod
    def of(cls, payment: Payment) -> Self:
        return cls(payment.payment_id, payment.order_id, payment.amount_minor, payment.currency, payment.method)


@dataclass(frozen=True, slots=True)
class RefundOrder:
    """Give so much of a charge's money back."""

    refund_id: str
    payment_id: str
    amount_minor: int
    currency: str

    @classmethod
    def of(cls, refund: Refund) -> Self:
        return cls(refund.refund_id, refund.payment_id, refund.amount_minor, refund.currency)


@dataclass(frozen=True, slots=True)
class Pending:
    """Taken note of and not decided yet."""


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
    """Every method raises GatewayUnavailableError when there is no answer: then the outcome is unknown.

    Invariants that every gateway holds: an id names one charge or one refund for ever, so that asking again changes
    nothing; what it has decided it never takes back; no charge gives back more than it took. An answer may be
    `Pending`: what becomes of it is told by a webhook, or found out by asking. No call is made inside a database
    transaction.
    """

    async def charge(self, request: ChargeRequest) -> Pending | Captured | Declined:
        """Take the money, once per payment id. Raises GatewayRejectedError if the id was used with other terms."""

    async def find_charge(self, request: ChargeRequest) -> Pending | Captured | Declined | None:
        """What became of the charge; None if the gateway has never heard of its id.

        Raises GatewayRejectedError if it knows the id with other terms.
        """

    async def refund(self, order: RefundOrder) -> Pending | Refunded:
        """Give money back, once per refund id. Raises GatewayRejectedError if that makes no sense."""

    async def find_refund(self, order: RefundOrder) -> Pending | Refunded | None:
        """What became of the refund; None if the gateway has never heard of its id.

        Raises GatewayRejectedError if it knows the id with other terms.
        """

    async def book(self) -> GatewayBook:
        """The sums of everything that ever happened."""


class PatientGateway:
    """Implements `PaymentGateway` over another, which is waited for only so long.

    What that one does afterwards is told by its webhook, or found out by asking again.
    """

    def __init__(self, gateway: PaymentGateway, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock

    async def charge(self, request: ChargeRequest) -> Pending | Captured | Declined:
        async with self._patience():
            return await self._gateway.charge(request)

    async def find_charge(self, request: ChargeRequest) -> Pending | Captured | Declined | None:
        async with self._patience():
            return await self._gateway.find_charge(request)

    async def refund(self, order: RefundOrder) -> Pending | Refunded:
        async with self._patience():
            return await self._gateway.refund(order)

    async def find_refund(self, order: RefundOrder) -> Pending | Refunded | None:
        async with self._patience():
            return await self._gateway.find_refund(order)

    async def book(self) -> GatewayBook:
        async with self._patience():
            return await self._gateway.book()

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        try:
            async with timeout(self._clock, PATIENCE_S):
                yield
        except TimeoutError as error:
            raise GatewayUnavailableError(f"the gateway gave no answer within {PATIENCE_S:.0f} s") from error


class OrderHolds(Protocol):
    """No call is made inside a unit of work.

    The port to orders, which is asked before money is taken to hold the order, so that it is not closed meanwhile (ADR
    122).

    Invariant: the gateway is asked to charge only after orders has said, a moment before, that the order is held for
    this very payment. A hold ends by itself, and is taken again while the payment is undecided.
    """

    async def take(self, payment: Payment) -> None:
        """Hold the payment's order, or hold it for longer. Raises OrderNotPayableError, OrdersUnavailableError."""

    async def release(self, payment: Payment) -> None:
        """Let the order of a payment that captured nothing go. Raises OrdersUnavailableError: it will end then."""

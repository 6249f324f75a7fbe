"""The port to the service that takes money, as the shop's pages use it: pay, look, refund.

Every call is made for a caller, and the other side decides what the caller may do. Amounts are minor units, times are
wall-clock milliseconds. Statuses, methods and reasons are the other side's words, kept as text: a page shows a word
that it does not know as it is. No call is made inside a unit of work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from servicekit.auth import Caller

IN_PROGRESS = "CREATED"
DECLINED = "DECLINED"
FAILED = "FAILED"
CAPTURED_STATUSES = frozenset({"CAPTURED", "PARTIALLY_REFUNDED"})


@dataclass(frozen=True, slots=True)
class PaymentView:
    """A payment as payments tells of it."""

    payment_id: str
    order_id: str
    amount_minor: int
    refunded_minor: int
    currency: str
    method: str
    status: str
    created_at_ms: int
    captured_at_ms: int | None
    decline_reason: str | None

    @property
    def was_captured(self) -> bool:
        """Whether money was taken that has not all gone back."""
        return self.status in CAPTURED_STATUSES


@dataclass(frozen=True, slots=True)
class RefundView:
    """A refund as payments tells of it."""

    refund_id: str
    payment_id: str
    amount_minor: int
    currency: str
    reason: str
    requested_by: str
    status: str
    requested_at_ms: int
    refunded_at_ms: int | None
    failure: str | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the gateway has refused it, so that it can be tried again."""
        return self.status == FAILED


@dataclass(frozen=True, slots=True)
class RefundPage:
    """Part of the list of all refunds, newest first."""

    items: tuple[RefundView, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class OrderToPay:
    """What a buyer pays: an order, whole and in its currency."""

    order_id: str
    amount_minor: int
    currency: str


class PaymentDesk(Protocol):
    """All methods raise PaymentsUnavailableError when there is no usable answer, and PaymentRefusedError."""

    async def methods(self, caller: Caller) -> tuple[str, ...]:
        """The ways to pay, in the order in which they are to be shown."""

    async def pay(self, caller: Caller, order: OrderToPay, method: str, key: str) -> PaymentView:
        """Pay the order, once for each key; the payment may still be in progress, or be declined."""

    async def payments_of(self, caller: Caller, order_id: str) -> tuple[PaymentView, ...]:
        """The order's payments, newest first."""

    async def payment(self, caller: Caller, payment_id: str) -> PaymentView:
        """One payment."""

    async def heard_of(self, caller: Caller, order_ids: Sequence[str]) -> Mapping[str, str]:
        """What payments has heard of at most 100 orders: OPEN, PAID or CLOSED; unknown ones are left out."""

    async def refunds_of(self, caller: Caller, payment_id: str) -> tuple[RefundView, ...]:
        """The payment's refunds."""

    async def refund(self, caller: Caller, payment_id: str, amount_minor: int, reason: str, key: str) -> RefundView:
        """Give a part or all of a payment back, once for each key."""

    async def retry_refund(self, caller: Caller, payment_id: str, refund_id: str) -> RefundView:
        """Try a refund again that the gateway has refused; another one is answered as it stands."""

    async def refunds(self, caller: Caller, cursor: str | None, status: str | None = None) -> RefundPage:
        """The refunds of all payments, or those that stand there, newest first."""

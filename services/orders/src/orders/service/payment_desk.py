"""What orders asks of payments, and what goes wrong there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from servicekit.auth import Caller
from servicekit.errors import RefusedError, TryAgainError

# ----------------------------------------------------------------------------------------------------------------------
# What can go wrong around the shop's pages, beside the errors of the domain. The tree goes on from servicekit.errors.
#
# ServiceError
# ├── RefusedError                 the request cannot be carried out as it stands; repeating it changes nothing
# │   ├── PaymentRefusedError
# │   ├── UnknownPaymentError
# │   └── UnknownDeadLetterError
# └── TryAgainError                nothing was changed; the same request may succeed a moment later
#     ├── PaymentsUnavailableError
#     ├── TooManyStreamsError
#     └── FeedClosedError


class PaymentRefusedError(RefusedError):
    """Payments said no. `problem` is its kind of problem, such as "order-closed", and `status` the HTTP status."""

    def __init__(self, problem: str, status: int, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem
        self.status = status


class UnknownPaymentError(RefusedError):
    """The order has no payment with this id."""

    def __init__(self, payment_id: str) -> None:
        super().__init__(f"the order has no payment {payment_id!r}")
        self.payment_id = payment_id


class UnknownDeadLetterError(RefusedError):
    """There is no such dead letter, or somebody has dealt with it already."""

    def __init__(self, group: str, letter_id: str) -> None:
        super().__init__(f"{group!r} has no open dead letter {letter_id!r}")
        self.group = group


class PaymentsUnavailableError(TryAgainError):
    """Payments gave no answer, or none that can be used."""


class TooManyStreamsError(TryAgainError):
    """No further stream of order events is opened now."""

    def __init__(self, streams_max: int) -> None:
        super().__init__(f"{streams_max} streams of order events are open already, and no more are allowed")


class FeedClosedError(TryAgainError):
    """The process is about to stop."""

    def __init__(self) -> None:
        super().__init__("this process is about to stop; ask again in a moment")


# ----------------------------------------------------------------------------------------------------------------------
# The port to the service that takes money, as the shop's pages use it: pay, look, refund.
#
# Every call is made for a caller, and the other side decides what the caller may do. Amounts are minor units, times are
# wall-clock milliseconds. Statuses, methods and reasons are the other side's words, kept as text: a page shows a word
# that it does not know as it is. No call is made inside a unit of work.


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

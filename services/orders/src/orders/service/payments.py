"""Payments and orders: the port to the service that takes money, and the effects of its payments on an order.

The errors around the shop's pages, beside those of the domain; the tree goes on from servicekit.errors:

ServiceError
├── RejectedError                the request cannot be carried out as it stands; repeating it changes nothing
│   ├── PaymentRejectedError
│   ├── UnknownPaymentError
│   └── UnknownDeadLetterError
└── TryAgainError                nothing was changed; the same request may succeed a moment later
    ├── PaymentsUnavailableError
    ├── TooManyStreamsError
    └── FeedClosedError
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from orders.domain.errors import RefundRequestedError, StatusChangedError
from orders.domain.order import HoldLimits, Order, Payment, PaymentHold, RefundReason, RefundRequest, Verdict, judge
from orders.service import events
from orders.service.use_case import NOT_METERED, OrderMeter, UnitOfWork, Units, find_visible, origin_of
from osenv import Clock
from servicekit.auth import Caller
from servicekit.errors import ConsumedBeforeError, RejectedError, TryAgainError
from servicekit.sql.units import TransactionalPublisher, require_first


class PaymentRejectedError(RejectedError):
    """Payments said no. `problem` is its kind of problem, such as "order-closed", and `status` the HTTP status."""

    def __init__(self, problem: str, status: int, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem
        self.status = status


class UnknownPaymentError(RejectedError):
    """The order has no payment with this id."""

    def __init__(self, payment_id: str) -> None:
        super().__init__(f"the order has no payment {payment_id!r}")
        self.payment_id = payment_id


class UnknownDeadLetterError(RejectedError):
    """There is no such dead letter, or it was dealt with already."""

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
        """Whether the gateway has rejected it, so that it can be tried again."""
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
    """All methods raise PaymentsUnavailableError when there is no usable answer, and PaymentRejectedError.

    Every call is made for a caller, and the other side decides what the caller may do. Amounts are minor units, times
    are wall-clock milliseconds. Statuses, methods and reasons are the other side's words, kept as text: a page shows a
    word that it does not know as it is. No call is made inside a unit of work.
    """

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
        """Try a refund again that the gateway has rejected; another one is answered as it stands."""

    async def refunds(self, caller: Caller, cursor: str | None, status: str | None = None) -> RefundPage:
        """The refunds of all payments, or those that stand there, newest first."""


class PaymentOutcome(enum.Enum):
    """What became of a payment."""

    PAID = "paid"
    PAID_BEFORE = "paid before"
    REFUND_REQUESTED = "refund requested"
    REFUND_REQUESTED_BEFORE = "refund requested before"
    CONSUMED_BEFORE = "consumed before"


class AcceptPayment:
    """The use case behind `payment-events`/`succeeded`.

    Invariants: a payment that is delivered again changes nothing, by the inbox; of a payment and a closing exactly one
    gets the order, by compare-and-set; the payment that lost is refunded exactly once, by the primary key of its refund
    request.
    """

    def __init__(
        self,
        units: Units,
        transactions: TransactionalPublisher[UnitOfWork],
        clock: Clock,
        meter: OrderMeter = NOT_METERED,
    ) -> None:
        self._units = units
        self._transactions = transactions
        self._clock = clock
        self._meter = meter

    async def __call__(self, payment: Payment) -> PaymentOutcome:
        """Carry the payment's consequences out; calling it again is harmless.

        Raises UnknownOrderError (the order's own transaction may not be visible yet), PublishError,
        TransactionGivenUpError and StorageUnavailableError; the message must then be delivered again.
        """
        # The loser of a race reads the order again. That ends: a status only moves forward.
        while True:
            async with self._units.autocommit() as unit:
                order = await unit.orders.get(payment.order_id)
                verdict = judge(order, payment)
                # Only such a payment can have been rejected before: a verdict other than PAY is final.
                if isinstance(verdict, RefundReason) and await unit.refunds.is_requested(payment.payment_id):
                    return PaymentOutcome.REFUND_REQUESTED_BEFORE
            if verdict is Verdict.IGNORE:
                return PaymentOutcome.PAID_BEFORE
            try:
                if isinstance(verdict, RefundReason):
                    return await self._request_refund(RefundRequest(payment, verdict))
                return await self._pay(order, payment)
            except ConsumedBeforeError:  # by another delivery of it, since the order was read
                return PaymentOutcome.CONSUMED_BEFORE
            except StatusChangedError:
                continue

    async def _pay(self, order: Order, payment: Payment) -> PaymentOutcome:
        paid_order, change = order.paid(payment, origin_of(events.PAYMENT_HANDLER_GROUP, self._clock, order))

        async def write(unit: UnitOfWork) -> None:
            await _consume(unit, payment, change.at_ms)
            await unit.orders.change_status(paid_order, change)

        await self._transactions.publish(events.paid(paid_order), write)
        self._meter.changed(paid_order, change)
        return PaymentOutcome.PAID

    async def _request_refund(self, refund: RefundRequest) -> PaymentOutcome:
        now_ms = self._clock.wall_ms()

        async def write(unit: UnitOfWork) -> None:
            await _consume(unit, refund.payment, now_ms)
            await unit.refunds.request(refund, now_ms)

        try:
            await self._transactions.publish(events.refund_requested(refund), write)
        except RefundRequestedError:
            return PaymentOutcome.REFUND_REQUESTED_BEFORE
        return PaymentOutcome.REFUND_REQUESTED


async def _consume(unit: UnitOfWork, payment: Payment, now_ms: int) -> None:
    """Raises ConsumedBeforeError.

    The key names order and payment: a payment that comes for another order is no repetition, and must not be taken for
    one. The database rejects it, and it ends where an operator finds it.
    """
    key = f"{payment.order_id}/{payment.payment_id}"
    await require_first(unit.inbox, events.PAYMENT_HANDLER_GROUP, key, now_ms)


class HoldOrder:
    """The use cases behind PUT and DELETE /orders/{id}/holds/{payment_id}; payments asks for the order's buyer.

    A payment holds its order before it captures money, and lets it go if it captures none (ADR 122).

    Invariants: an order that is held is not closed; of a hold and a closing exactly one gets the order, by
    compare-and-set; a payment that takes its hold again prolongs it, within the bounds of domain/order.py.
    """

    def __init__(self, units: Units, clock: Clock, limits: HoldLimits) -> None:
        self._units = units
        self._clock = clock
        self._limits = limits

    async def take(self, order_id: str, payment_id: str, caller: Caller) -> PaymentHold:
        """Hold the order for the payment, or for longer if it does so already.

        Raises UnknownOrderError, OrderNotPayableError, OrderHeldError (by another payment), StorageUnavailableError.
        """
        now_ms = self._clock.wall_ms()
        # The loser of a race reads the order again. That ends: a status only moves forward, and holds are taken one by
        # one.
        while True:
            async with self._units.writing() as unit:
                order = await find_visible(unit.orders, order_id, caller)
                hold = order.held(payment_id, now_ms, self._limits)
                try:
                    await unit.orders.set_hold(order, hold)
                except StatusChangedError:
                    continue
                await unit.commit()
            return hold

    async def release(self, order_id: str, payment_id: str, caller: Caller) -> None:
        """Let the order go, if this payment was the last to hold it: it has captured nothing, and never will.

        Raises UnknownOrderError, StatusChangedError, StorageUnavailableError.
        """
        async with self._units.writing() as unit:
            order = await find_visible(unit.orders, order_id, caller)
            if order.hold is not None and order.hold.payment_id == payment_id:
                await unit.orders.set_hold(order, None)
                await unit.commit()

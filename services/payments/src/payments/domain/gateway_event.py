"""What comes from outside: the gateway's events, and the orders that can be paid."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from payments.domain.errors import (
    AlreadyPaidError,
    OrderClosedError,
    UnknownOrderError,
    WrongAmountError,
    WrongCurrencyError,
)
from payments.domain.payment import TOOK_MONEY, Payment, PaymentRequest, PaymentStatus
from payments.domain.refund import Refund, RefundStatus


class EventKind(enum.StrEnum):
    """What happened at the gateway, in the gateway's own words."""

    CHARGE_CAPTURED = "charge.captured"
    CHARGE_DECLINED = "charge.declined"
    REFUND_REFUNDED = "refund.refunded"


class EventStatus(enum.StrEnum):
    """What became of an event."""

    HANDLED = "HANDLED"  # it changed a payment
    REPEATED = "REPEATED"  # it told what was known
    REFUSED = "REFUSED"  # it contradicts what is known; a person has to look


@dataclass(frozen=True, slots=True)
class GatewayEvent:
    """One event; its signature was checked. `refund_id` is None for an event of a charge, never for one of a refund.

    Invariants: an event changes something only if its order, amount and currency are those of the payment or refund
    that it names; what a payment has become is not taken back by an event that comes late, twice, or before another.
    Money that was taken is booked, whatever was known before (ADR 144).
    """

    event_id: str
    kind: EventKind
    occurred_at_ms: int
    payment_id: str
    order_id: str
    amount_minor: int
    currency: str
    decline_reason: str | None = None
    refund_id: str | None = None

    def __post_init__(self) -> None:
        if (self.refund_id is not None) != (self.kind is EventKind.REFUND_REFUNDED):
            raise ValueError(f"event {self.event_id!r} is {self.kind}, and refund_id is {self.refund_id!r}")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of an event, and why, if it is rejected."""

    status: EventStatus
    reason: str | None = None


_HANDLED = Judgement(EventStatus.HANDLED)
_REPEATED = Judgement(EventStatus.REPEATED)


def judge(event: GatewayEvent, payment: Payment | None, refund: Refund | None) -> Judgement:
    """What becomes of the event, given the payment and the refund that it names, None where they are unknown."""
    if payment is None:
        return _rejected(f"there is no payment {event.payment_id!r}")
    if event.order_id != payment.order_id:
        return _rejected(f"the payment is of order {payment.order_id!r}, not {event.order_id!r}")
    if event.currency != payment.currency:
        return _rejected(f"the payment is in {payment.currency}, not {event.currency}")
    if event.kind is EventKind.REFUND_REFUNDED:
        return _judge_refund(event, refund)
    if event.amount_minor != payment.amount_minor:
        return _rejected(f"the payment is of {payment.amount_minor}, not {event.amount_minor}")
    took_money = payment.status in TOOK_MONEY
    if payment.status is PaymentStatus.CREATED or (event.kind is EventKind.CHARGE_CAPTURED and not took_money):
        return _HANDLED
    is_known = took_money == (event.kind is EventKind.CHARGE_CAPTURED)
    return _REPEATED if is_known else _rejected(f"the payment is {payment.status} already")


def _judge_refund(event: GatewayEvent, refund: Refund | None) -> Judgement:
    if refund is None or refund.payment_id != event.payment_id:
        return _rejected(f"the payment has no refund {event.refund_id!r}")
    if event.amount_minor != refund.amount_minor:
        return _rejected(f"the refund is of {refund.amount_minor}, not {event.amount_minor}")
    return _REPEATED if refund.status is RefundStatus.REFUNDED else _HANDLED


def _rejected(reason: str) -> Judgement:
    return Judgement(EventStatus.REFUSED, reason)


class PayableStatus(enum.StrEnum):
    """Whether an order can be paid."""

    OPEN = "OPEN"
    PAID = "PAID"
    CLOSED = "CLOSED"


# An order that was paid may still be closed by its seller; nothing leads out of CLOSED.
FORWARD: Mapping[PayableStatus, frozenset[PayableStatus]] = MappingProxyType(
    {
        PayableStatus.OPEN: frozenset({PayableStatus.PAID, PayableStatus.CLOSED}),
        PayableStatus.PAID: frozenset({PayableStatus.CLOSED}),
        PayableStatus.CLOSED: frozenset(),
    }
)


@dataclass(frozen=True, slots=True)
class Terms:
    """An order's buyer, its price, and its expiry; money in minor units, time in wall-clock milliseconds."""

    buyer_id: str
    total_minor: int
    currency: str
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class PayableOrder:
    """An order as the events told it so far.

    `traceparent` is the trace in which they were heard of; nothing here looks into it.

    Invariants: a status only moves forward, whatever the order and the number of the events that tell it; an order that
    is OPEN has its terms. One that was heard of first when it was already over may never get them.

    The time of expiry is kept and not compared: this process's clock must not decide. The compare-and-set of orders
    does, and money that lost against the closing goes back.
    """

    order_id: str
    status: PayableStatus
    terms: Terms | None
    traceparent: str | None = None

    def __post_init__(self) -> None:
        if self.terms is None and self.status is PayableStatus.OPEN:
            raise ValueError(f"order {self.order_id!r} is OPEN without buyer and total")

    def merged(self, told: PayableOrder) -> PayableOrder:
        """This order after one more event; `self` if that is nothing new."""
        status = told.status if told.status in FORWARD[self.status] else self.status
        traceparent = self.traceparent or told.traceparent
        return replace(self, status=status, terms=self.terms or told.terms, traceparent=traceparent)

    def check(self, request: PaymentRequest) -> None:
        """Return if the request pays this order.

        Raises UnknownOrderError for every caller but the order's buyer, who may then get WrongCurrencyError,
        WrongAmountError, OrderClosedError or AlreadyPaidError.
        """
        if self.terms is None or request.buyer_id != self.terms.buyer_id:
            raise UnknownOrderError(self.order_id)
        if request.currency != self.terms.currency:
            raise WrongCurrencyError(self.order_id, request.currency, self.terms.currency)
        if request.amount_minor != self.terms.total_minor:
            raise WrongAmountError(self.order_id, request.amount_minor, self.terms.total_minor)
        if self.status is PayableStatus.CLOSED:
            raise OrderClosedError(self.order_id)
        if self.status is PayableStatus.PAID:
            raise AlreadyPaidError(self.order_id)

"""What payments knows of an order: whose it is, what it costs, and whether it can still be paid.

Invariants: a status only moves forward, whatever the order and the number of the events that tell it; an order that is
OPEN has its terms. One that was heard of first when it was already over may never get them.

The time of expiry is kept and not compared: this process's clock must not decide. The compare-and-set of orders does,
and money that lost against the closing goes back.
"""

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
from payments.domain.payment import PaymentRequest


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
    """What an order costs whom, and until when it waits; money in minor units, time in wall-clock milliseconds."""

    buyer_id: str
    total_minor: int
    currency: str
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class PayableOrder:
    """An order as the events told it so far.

    `traceparent` is where they were heard of, for those who watch the system; nothing here looks into it.
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

        Raises UnknownOrderError for everybody but the order's buyer, who may then get WrongCurrencyError,
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

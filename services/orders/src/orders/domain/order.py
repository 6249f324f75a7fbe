"""An order: its lines, its states and their changes, the hold of a payment, and what a payment makes of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from orders.domain.errors import (
    IllegalTransitionError,
    InsufficientStockError,
    MixedCurrenciesError,
    OrderHeldError,
    OrderNotPayableError,
    SaleEndedError,
    UnknownProductError,
)
from orders.domain.product import Product


class OrderStatus(enum.StrEnum):
    """Where an order stands.

    Invariants: a status changes only by a row of TRANSITIONS; COMPLETED and CLOSED have no row and are final. Status
    and reason together say which change it was: a reason that leads somewhere from two states is the same act in both.
    """

    PENDING_PAYMENT = "PENDING_PAYMENT"
    AWAITING_SHIPMENT = "AWAITING_SHIPMENT"
    SHIPPED = "SHIPPED"
    COMPLETED = "COMPLETED"
    CLOSED = "CLOSED"


PAID_STATUSES = frozenset({OrderStatus.AWAITING_SHIPMENT, OrderStatus.SHIPPED, OrderStatus.COMPLETED})


class ChangeReason(enum.StrEnum):
    """Why an order changed its status; kept in its history."""

    PLACED = "placed"
    PAID = "paid"
    EXPIRED = "expired"
    CANCELLED = "cancelled"  # by its buyer
    SELLER_CANCELLED = "seller-cancelled"
    REFUNDED = "refunded"  # all of its money went back before it was shipped
    SHIPPED = "shipped"
    RECEIVED = "received"
    COMPLETED_AUTOMATICALLY = "completed-automatically"


TRANSITIONS = MappingProxyType(
    {
        (OrderStatus.PENDING_PAYMENT, ChangeReason.PAID): OrderStatus.AWAITING_SHIPMENT,
        (OrderStatus.PENDING_PAYMENT, ChangeReason.EXPIRED): OrderStatus.CLOSED,
        (OrderStatus.PENDING_PAYMENT, ChangeReason.CANCELLED): OrderStatus.CLOSED,
        (OrderStatus.PENDING_PAYMENT, ChangeReason.SELLER_CANCELLED): OrderStatus.CLOSED,
        (OrderStatus.AWAITING_SHIPMENT, ChangeReason.SHIPPED): OrderStatus.SHIPPED,
        (OrderStatus.AWAITING_SHIPMENT, ChangeReason.SELLER_CANCELLED): OrderStatus.CLOSED,
        (OrderStatus.AWAITING_SHIPMENT, ChangeReason.REFUNDED): OrderStatus.CLOSED,
        (OrderStatus.SHIPPED, ChangeReason.RECEIVED): OrderStatus.COMPLETED,
        (OrderStatus.SHIPPED, ChangeReason.COMPLETED_AUTOMATICALLY): OrderStatus.COMPLETED,
    }
)


def next_status(status: OrderStatus, reason: ChangeReason) -> OrderStatus:
    """The status after `reason` happened to an order in `status`. Raises IllegalTransitionError if it cannot happen."""
    try:
        return TRANSITIONS[status, reason]
    except KeyError:
        raise IllegalTransitionError(status, reason) from None


@dataclass(frozen=True, slots=True)
class Origin:
    """The actor of a change, its wall-clock millisecond, and its trace.

    `actor` is the caller's subject, or the consumer group that acts by itself. `trace_id` is None outside a trace.
    """

    actor: str
    at_ms: int
    trace_id: str | None = None


class UnitMove(NamedTuple):
    """From which number of a product (domain/product.py) to which an order's units move."""

    source: str
    target: str


# Where an order's units are counted while it stands there; None is before it was placed.
UNITS_IN = MappingProxyType(
    {
        None: "available",
        OrderStatus.PENDING_PAYMENT: "reserved",
        **dict.fromkeys(PAID_STATUSES, "sold"),
        OrderStatus.CLOSED: "available",
    }
)
RESERVATION = UnitMove("available", "reserved")
_CHANGES = ((UNITS_IN[old], UNITS_IN[new]) for (old, _), new in TRANSITIONS.items())
UNIT_MOVES = frozenset({RESERVATION, *(UnitMove(*move) for move in _CHANGES if move[0] != move[1])})


@dataclass(frozen=True, slots=True)
class StatusChange:
    """One row of an order's history; `old_status` is None for the first."""

    order_id: str
    old_status: OrderStatus | None
    new_status: OrderStatus
    reason: ChangeReason
    at_ms: int
    actor: str
    trace_id: str | None

    @property
    def unit_move(self) -> UnitMove | None:
        """What the order's units do with this change; None when they stay."""
        move = UnitMove(UNITS_IN[self.old_status], UNITS_IN[self.new_status])
        return None if move.source == move.target else move


# Payments waits 3 s for its hold and then 10 s for the gateway. A shorter hold would let an order close under a charge.
CAPTURE_MAX_MS = 13_000
HOLD_MS = 30_000  # payments takes a hold again each time it asks what became of a charge
PAST_EXPIRY_MAX_MS = 600_000


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """How long an order may be held."""

    lifetime_ms: int = HOLD_MS
    past_expiry_max_ms: int = PAST_EXPIRY_MAX_MS


DEFAULT_HOLD_LIMITS = HoldLimits()


@dataclass(frozen=True, slots=True)
class PaymentHold:
    """Which payment holds the order, until which wall-clock millisecond; kept when it is over, as the last one.

    A payment's hold on its order: while it lasts, the order is not closed under the payment's hands.

    A hold begins before the order's time to pay is over, and ends by itself: `lifetime_ms` after it was last taken, and
    at the latest `past_expiry_max_ms` after the order's expiry, however often its payment takes it again.
    """

    payment_id: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class RequestedLine:
    """What a buyer asks for: so many units of a product."""

    product_id: str
    quantity: int

    def __post_init__(self) -> None:
        if self.quantity < 1:
            raise ValueError(f"the quantity of {self.product_id!r} is {self.quantity}; at least 1 can be ordered")


@dataclass(frozen=True, slots=True)
class OrderLine:
    """So many units of a product at the price of the moment of ordering."""

    product_id: str
    quantity: int
    unit_price_minor: int


@dataclass(frozen=True, slots=True)
class Order:
    """An order; times are wall-clock milliseconds, money is in the currency's minor unit.

    `traceparent` is where its trace began; nothing here looks into it.

    Invariants: an order has at least one line, one currency, and a total that is the sum of its lines; everything but
    its status and the members that go with it stays as it was placed. `version` starts at 1 and grows by one with each
    row of the history. closed_at_ms is set exactly when the status is CLOSED, shipped_at_ms exactly when it is SHIPPED
    or COMPLETED, completed_at_ms exactly when it is COMPLETED; payment_id and paid_at_ms are set together, always when
    the status is one of PAID_STATUSES, never when it is PENDING_PAYMENT, and for a CLOSED order exactly if it was paid
    before. `hold` is the last one; it means something while the status is PENDING_PAYMENT, and is no part of the
    version.
    """

    order_id: str
    buyer_id: str
    lines: tuple[OrderLine, ...]
    total_minor: int
    currency: str
    status: OrderStatus
    created_at_ms: int
    expires_at_ms: int
    closed_at_ms: int | None = None
    payment_id: str | None = None
    paid_at_ms: int | None = None
    shipped_at_ms: int | None = None
    completed_at_ms: int | None = None
    version: int = 1
    traceparent: str | None = None
    hold: PaymentHold | None = None

    def __post_init__(self) -> None:
        if not self.lines or self.total_minor != sum(line.quantity * line.unit_price_minor for line in self.lines):
            raise ValueError(f"the total of order {self.order_id!r} is not the sum of its lines")
        self._check_time("closed_at_ms", self.closed_at_ms, OrderStatus.CLOSED)
        self._check_time("shipped_at_ms", self.shipped_at_ms, OrderStatus.SHIPPED, OrderStatus.COMPLETED)
        self._check_time("completed_at_ms", self.completed_at_ms, OrderStatus.COMPLETED)
        is_paid = self.payment_id is not None
        may_be = self.status is OrderStatus.CLOSED or is_paid == (self.status in PAID_STATUSES)
        if not may_be or (self.paid_at_ms is not None) != is_paid:
            raise ValueError(
                f"order {self.order_id!r} is {self.status}, payment_id is {self.payment_id} and paid_at_ms is"
                f" {self.paid_at_ms}"
            )
        if self.version < 1:
            raise ValueError(f"order {self.order_id!r} has version {self.version}; versions start at 1")

    def is_due(self, now_ms: int) -> bool:
        """Whether the time to pay is over."""
        return now_ms >= self.expires_at_ms

    def is_held(self, now_ms: int) -> bool:
        """Whether a payment is in progress that may capture the order's money at any moment."""
        return self.status is OrderStatus.PENDING_PAYMENT and self.hold is not None and now_ms < self.hold.until_ms

    def require_not_held(self, now_ms: int) -> None:
        """Raises OrderHeldError while a payment is in progress."""
        if self.is_held(now_ms):
            raise OrderHeldError(self.order_id)

    def held(self, payment_id: str, now_ms: int, limits: HoldLimits) -> PaymentHold:
        """The payment's hold on the order from now on. Raises OrderNotPayableError, OrderHeldError.

        A payment takes its first hold before the order's time is over; the one that has held it last may do so later.
        """
        is_own = self.hold is not None and self.hold.payment_id == payment_id
        last_ms = self.expires_at_ms + (limits.past_expiry_max_ms if is_own else 0)
        if self.status is not OrderStatus.PENDING_PAYMENT or now_ms >= last_ms:
            ended_ms_ago = max(0, now_ms - self.hold.until_ms) if is_own and self.hold is not None else None
            raise OrderNotPayableError(self.order_id, self.status, ended_ms_ago)
        if not is_own:
            self.require_not_held(now_ms)
        until_ms = min(now_ms + limits.lifetime_ms, self.expires_at_ms + limits.past_expiry_max_ms)
        return PaymentHold(payment_id, until_ms)

    def changed(self, reason: ChangeReason, origin: Origin) -> tuple[Order, StatusChange]:
        """The order after `reason` happened, and its history row; `paid` is for PAID. Raises IllegalTransitionError."""
        change = self._change(reason, origin)
        changed_order = replace(
            self,
            status=change.new_status,
            version=self.version + 1,
            closed_at_ms=origin.at_ms if change.new_status is OrderStatus.CLOSED else None,
            shipped_at_ms=origin.at_ms if change.new_status is OrderStatus.SHIPPED else self.shipped_at_ms,
            completed_at_ms=origin.at_ms if change.new_status is OrderStatus.COMPLETED else None,
        )
        return changed_order, change

    def paid(self, payment: Payment, origin: Origin) -> tuple[Order, StatusChange]:
        """The order after this payment, and its history row. Raises IllegalTransitionError.

        The payment says when the buyer paid, `origin` when the order learns of it.
        """
        change = self._change(ChangeReason.PAID, origin)
        paid_order = replace(
            self,
            status=change.new_status,
            version=self.version + 1,
            payment_id=payment.payment_id,
            paid_at_ms=payment.paid_at_ms,
        )
        return paid_order, change

    def as_placed(self) -> Order:
        """The order as it was at its first moment: what a repeated request is answered with."""
        return Order(
            order_id=self.order_id,
            buyer_id=self.buyer_id,
            lines=self.lines,
            total_minor=self.total_minor,
            currency=self.currency,
            status=OrderStatus.PENDING_PAYMENT,
            created_at_ms=self.created_at_ms,
            expires_at_ms=self.expires_at_ms,
            traceparent=self.traceparent,
        )

    def as_after(self, change: StatusChange, version: int) -> Order:
        """The order as it was after this change of its, which made it `version`: what a repeated command is told.

        For changes that people ask for: what may follow one of them is the completion of a shipped order.
        """
        completed_at_ms = self.completed_at_ms if change.new_status is OrderStatus.COMPLETED else None
        return replace(self, status=change.new_status, version=version, completed_at_ms=completed_at_ms)

    def payment(self) -> Payment | None:
        """The payment that paid for the order: the amount is the total, or it would not have."""
        if self.payment_id is None or self.paid_at_ms is None:
            return None
        return Payment(self.payment_id, self.order_id, self.total_minor, self.currency, self.paid_at_ms)

    def _change(self, reason: ChangeReason, origin: Origin) -> StatusChange:
        return _change(self.order_id, self.status, next_status(self.status, reason), reason, origin)

    def _check_time(self, name: str, at_ms: int | None, *statuses: OrderStatus) -> None:
        if (at_ms is not None) != (self.status in statuses):
            raise ValueError(f"order {self.order_id!r} is {self.status} and {name} is {at_ms}")


def price_lines(requested: Sequence[RequestedLine], products: Mapping[str, Product]) -> tuple[OrderLine, ...]:
    """The lines at today's prices.

    Raises UnknownProductError, MixedCurrenciesError, SaleEndedError, or InsufficientStockError when a product has not
    enough units; whether all of this still holds when they are reserved is for the reservation to decide.
    """
    for line in requested:
        if line.product_id not in products:
            raise UnknownProductError(line.product_id)
    currencies = sorted({products[line.product_id].currency for line in requested})
    if len(currencies) > 1:
        raise MixedCurrenciesError(currencies)
    for line in requested:
        product = products[line.product_id]
        if not product.is_on_sale:
            raise SaleEndedError(line.product_id)
        if product.available < line.quantity:
            raise InsufficientStockError(line.product_id, line.quantity, product.available)
    return tuple(OrderLine(line.product_id, line.quantity, products[line.product_id].price_minor) for line in requested)


def place(
    order_id: str,
    buyer_id: str,
    lines: tuple[OrderLine, ...],
    currency: str,
    origin: Origin,
    *,
    payment_window_ms: int,
    traceparent: str | None = None,
) -> tuple[Order, StatusChange]:
    """A new order that waits for its payment, and the first row of its history."""
    order = Order(
        order_id=order_id,
        buyer_id=buyer_id,
        lines=lines,
        total_minor=sum(line.quantity * line.unit_price_minor for line in lines),
        currency=currency,
        status=OrderStatus.PENDING_PAYMENT,
        created_at_ms=origin.at_ms,
        expires_at_ms=origin.at_ms + payment_window_ms,
        traceparent=traceparent,
    )
    return order, _change(order_id, None, order.status, ChangeReason.PLACED, origin)


def _change(
    order_id: str, old_status: OrderStatus | None, new_status: OrderStatus, reason: ChangeReason, origin: Origin
) -> StatusChange:
    return StatusChange(order_id, old_status, new_status, reason, origin.at_ms, origin.actor, origin.trace_id)


@dataclass(frozen=True, slots=True)
class Payment:
    """Money that arrived for an order: minor units, and wall-clock milliseconds."""

    payment_id: str
    order_id: str
    amount_minor: int
    currency: str
    paid_at_ms: int


@dataclass(frozen=True, slots=True)
class RefundedPayment:
    """Money of a payment that went back: `refunded_minor` is all of it so far, by however many refunds."""

    payment_id: str
    order_id: str
    refunded_minor: int


class RefundReason(enum.StrEnum):
    """Why the money goes back."""

    ORDER_CLOSED = "order-closed"
    ALREADY_PAID = "already-paid"
    WRONG_AMOUNT = "wrong-amount"
    ORDER_CANCELLED = "order-cancelled"  # by its seller, after it was paid


@dataclass(frozen=True, slots=True)
class RefundRequest:
    """A payment whose money has to go back."""

    payment: Payment
    reason: RefundReason


class Verdict(enum.Enum):
    """What else may come of a payment."""

    PAY = "pay"
    IGNORE = "ignore"


def judge(order: Order, payment: Payment) -> Verdict | RefundReason:
    """PAY, IGNORE for the payment that has paid the order already, or the reason why the money goes back.

    An order that was cancelled after it was paid asked for its money when it was closed: its payment is ignored here.

    Invariants: an order is paid by one payment at most; a payment pays, or its money goes back. Both happen to one
    payment only when the seller cancels the order that it has paid, and then the money goes back once. Each answer but
    PAY is final: an order that is closed or paid is never unpaid again, and an amount does not change.
    """
    if order.payment_id == payment.payment_id:
        return Verdict.IGNORE
    if order.status is OrderStatus.CLOSED:
        return RefundReason.ORDER_CLOSED
    if order.payment_id is not None:
        return RefundReason.ALREADY_PAID
    if (payment.amount_minor, payment.currency) != (order.total_minor, order.currency):
        return RefundReason.WRONG_AMOUNT
    return Verdict.PAY

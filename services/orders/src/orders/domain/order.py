"""An order: who buys what for how much, until when it can be paid, and where it stands.

Invariants: an order has at least one line, one currency, and a total that is the sum of its lines; everything but its
status and the members that go with it stays as it was placed; closed_at_ms is set exactly when the status is CLOSED,
payment_id and paid_at_ms exactly when it is one of PAID_STATUSES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orders.domain.errors import InsufficientStockError, MixedCurrenciesError, UnknownProductError
from orders.domain.order_status import PAID_STATUSES, ChangeReason, OrderStatus, next_status
from orders.domain.product import Product


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
class StatusChange:
    """One row of an order's history; `old_status` is None for the first."""

    order_id: str
    old_status: OrderStatus | None
    new_status: OrderStatus
    reason: ChangeReason
    at_ms: int


@dataclass(frozen=True, slots=True)
class Order:
    """An order; times are wall-clock milliseconds, money is in the currency's minor unit."""

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

    def __post_init__(self) -> None:
        if not self.lines or self.total_minor != sum(line.quantity * line.unit_price_minor for line in self.lines):
            raise ValueError(f"the total of order {self.order_id!r} is not the sum of its lines")
        if (self.closed_at_ms is not None) != (self.status is OrderStatus.CLOSED):
            raise ValueError(f"order {self.order_id!r} is {self.status} and closed_at_ms is {self.closed_at_ms}")
        is_paid = self.status in PAID_STATUSES
        if (self.payment_id is not None) != is_paid or (self.paid_at_ms is not None) != is_paid:
            raise ValueError(
                f"order {self.order_id!r} is {self.status}, payment_id is {self.payment_id} and paid_at_ms is"
                f" {self.paid_at_ms}"
            )

    def is_due(self, now_ms: int) -> bool:
        """Whether the time to pay is over."""
        return now_ms >= self.expires_at_ms

    def changed(self, reason: ChangeReason, at_ms: int) -> tuple[Order, StatusChange]:
        """The order after `reason` happened, and its history row; `paid` is for PAID. Raises IllegalTransitionError."""
        change = StatusChange(self.order_id, self.status, next_status(self.status, reason), reason, at_ms)
        closed_at_ms = at_ms if change.new_status is OrderStatus.CLOSED else None
        return replace(self, status=change.new_status, closed_at_ms=closed_at_ms), change

    def paid(self, payment_id: str, paid_at_ms: int, at_ms: int) -> tuple[Order, StatusChange]:
        """The order after this payment, and its history row. Raises IllegalTransitionError.

        `paid_at_ms` is when the buyer paid, `at_ms` when the order learns of it.
        """
        status = next_status(self.status, ChangeReason.PAID)
        change = StatusChange(self.order_id, self.status, status, ChangeReason.PAID, at_ms)
        return replace(self, status=status, payment_id=payment_id, paid_at_ms=paid_at_ms), change

    def as_placed(self) -> Order:
        """The order as it was at its first moment: what a repeated request is answered with."""
        return replace(self, status=OrderStatus.PENDING_PAYMENT, closed_at_ms=None, payment_id=None, paid_at_ms=None)

    def lines_by_product(self) -> list[OrderLine]:
        """The lines in the order in which stock is changed, so that no two orders wait for each other's rows."""
        return sorted(self.lines, key=lambda line: line.product_id)


def price_lines(requested: Sequence[RequestedLine], products: Mapping[str, Product]) -> tuple[OrderLine, ...]:
    """The lines at today's prices.

    Raises UnknownProductError, MixedCurrenciesError, or InsufficientStockError when a product has not enough units;
    whether it still has them when they are reserved is for the reservation to decide.
    """
    for line in requested:
        if line.product_id not in products:
            raise UnknownProductError(line.product_id)
    currencies = sorted({products[line.product_id].currency for line in requested})
    if len(currencies) > 1:
        raise MixedCurrenciesError(currencies)
    for line in requested:
        available = products[line.product_id].available
        if available < line.quantity:
            raise InsufficientStockError(line.product_id, line.quantity, available)
    return tuple(OrderLine(line.product_id, line.quantity, products[line.product_id].price_minor) for line in requested)


def place(
    order_id: str,
    buyer_id: str,
    lines: tuple[OrderLine, ...],
    currency: str,
    *,
    now_ms: int,
    payment_window_ms: int,
) -> tuple[Order, StatusChange]:
    """A new order that waits for its payment, and the first row of its history."""
    order = Order(
        order_id=order_id,
        buyer_id=buyer_id,
        lines=lines,
        total_minor=sum(line.quantity * line.unit_price_minor for line in lines),
        currency=currency,
        status=OrderStatus.PENDING_PAYMENT,
        created_at_ms=now_ms,
        expires_at_ms=now_ms + payment_window_ms,
    )
    return order, StatusChange(order_id, None, order.status, ChangeReason.PLACED, now_ms)

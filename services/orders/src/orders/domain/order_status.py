"""The five states of an order (MISSION X1) and the changes between them.

Invariants: a status changes only by a row of TRANSITIONS; COMPLETED and CLOSED have no row and are final. Status and
reason together say which change it was: a reason that leads somewhere from two states is the same act in both.
"""

from __future__ import annotations

import enum
from types import MappingProxyType

from orders.domain.errors import IllegalTransitionError


class OrderStatus(enum.StrEnum):
    """Where an order stands."""

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

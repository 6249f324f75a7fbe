"""The table of order states, pair by pair."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from orders.domain.errors import IllegalTransitionError
from orders.domain.order import (
    PAID_STATUSES,
    TRANSITIONS,
    ChangeReason,
    Order,
    OrderLine,
    OrderStatus,
    Origin,
    Payment,
    StatusChange,
    next_status,
)

# Written out by hand, so that a slip in the table is seen: from, why, to.
ALLOWED = {
    ("PENDING_PAYMENT", "paid"): "AWAITING_SHIPMENT",
    ("PENDING_PAYMENT", "expired"): "CLOSED",
    ("PENDING_PAYMENT", "cancelled"): "CLOSED",
    ("PENDING_PAYMENT", "seller-cancelled"): "CLOSED",
    ("AWAITING_SHIPMENT", "shipped"): "SHIPPED",
    ("AWAITING_SHIPMENT", "seller-cancelled"): "CLOSED",
    ("AWAITING_SHIPMENT", "refunded"): "CLOSED",
    ("SHIPPED", "received"): "COMPLETED",
    ("SHIPPED", "completed-automatically"): "COMPLETED",
}
ORIGIN = Origin("caller", 7, "a trace")
PAYMENT = Payment("payment-2", "o", 100, "CNY", 6)


def order_with(**members: Any) -> Order:
    """An order that waits for its payment, but for `members`."""
    good: dict[str, Any] = {
        "order_id": "o",
        "buyer_id": "b",
        "lines": (OrderLine("p", 2, 50),),
        "total_minor": 100,
        "currency": "CNY",
        "status": OrderStatus.PENDING_PAYMENT,
        "created_at_ms": 1,
        "expires_at_ms": 9,
    }
    return Order(**good | members)


def order_in(status: OrderStatus) -> Order:
    members: dict[str, Any] = {"status": status, "version": 3}
    if status is OrderStatus.CLOSED:
        members["closed_at_ms"] = 5
    if status in PAID_STATUSES:
        members |= {"payment_id": "payment-1", "paid_at_ms": 4}
    if status in {OrderStatus.SHIPPED, OrderStatus.COMPLETED}:
        members["shipped_at_ms"] = 5
    if status is OrderStatus.COMPLETED:
        members["completed_at_ms"] = 6
    return order_with(**members)


def change_of(order: Order, reason: ChangeReason) -> tuple[Order, StatusChange]:
    return order.paid(PAYMENT, ORIGIN) if reason is ChangeReason.PAID else order.changed(reason, ORIGIN)


@pytest.mark.mechanism("X1")
@pytest.mark.parametrize(("status", "reason"), list(itertools.product(OrderStatus, ChangeReason)))
def test_every_pair_of_status_and_reason_follows_the_table(status: OrderStatus, reason: ChangeReason) -> None:
    order = order_in(status)
    expected = ALLOWED.get((status.value, reason.value))
    if expected is None:
        with pytest.raises(IllegalTransitionError, match=f"{status} cannot be {reason}"):
            change_of(order, reason)
        with pytest.raises(IllegalTransitionError):
            next_status(status, reason)
        return
    changed, change = change_of(order, reason)
    assert (changed.status, changed.version) == (expected, 4)
    assert changed.closed_at_ms == (7 if expected == "CLOSED" else None)
    assert changed.shipped_at_ms == (7 if expected == "SHIPPED" else order.shipped_at_ms)
    assert changed.completed_at_ms == (7 if expected == "COMPLETED" else None)
    kept = (order.payment_id, order.paid_at_ms)
    assert (changed.payment_id, changed.paid_at_ms) == (("payment-2", 6) if reason == "paid" else kept)
    assert change == StatusChange("o", status, OrderStatus(expected), reason, 7, "caller", "a trace")
    assert changed.as_placed() == order_with()


@pytest.mark.parametrize(("old", "new"), list(itertools.product(OrderStatus, OrderStatus)))
def test_every_pair_of_statuses_is_reachable_exactly_if_the_table_says_so(old: OrderStatus, new: OrderStatus) -> None:
    reachable = {target for (source, _), target in TRANSITIONS.items() if source is old}
    assert (new in reachable) == any(
        source == old.value and target == new.value for (source, _), target in ALLOWED.items()
    )


def test_no_state_is_left_once_an_order_is_completed_or_closed() -> None:
    assert {source for source, _ in TRANSITIONS} == set(OrderStatus) - {OrderStatus.COMPLETED, OrderStatus.CLOSED}


def test_every_reason_but_the_first_is_in_the_table() -> None:
    assert {reason for _, reason in TRANSITIONS} == set(ChangeReason) - {ChangeReason.PLACED}


def test_a_closed_order_keeps_the_payment_that_it_had() -> None:
    closed, _ = order_in(OrderStatus.AWAITING_SHIPMENT).changed(ChangeReason.SELLER_CANCELLED, ORIGIN)
    assert closed.payment() == Payment("payment-1", "o", 100, "CNY", 4)
    assert order_in(OrderStatus.CLOSED).payment() is None


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"total_minor": 99}, "sum of its lines"),
        ({"lines": (), "total_minor": 0}, "sum of its lines"),
        ({"status": OrderStatus.CLOSED}, "closed_at_ms"),
        ({"closed_at_ms": 5}, "closed_at_ms"),
        ({"shipped_at_ms": 5}, "shipped_at_ms"),
        ({"completed_at_ms": 5}, "completed_at_ms"),
        ({"payment_id": "payment-1", "paid_at_ms": 5}, "payment_id"),
        ({"status": OrderStatus.AWAITING_SHIPMENT, "paid_at_ms": 5}, "payment_id"),
        ({"status": OrderStatus.AWAITING_SHIPMENT, "payment_id": "payment-1"}, "payment_id"),
        ({"status": OrderStatus.CLOSED, "closed_at_ms": 5, "payment_id": "payment-1"}, "payment_id"),
        ({"status": OrderStatus.SHIPPED, "payment_id": "payment-1", "paid_at_ms": 4}, "shipped_at_ms"),
        ({"version": 0}, "versions start at 1"),
    ],
)
def test_an_order_whose_members_disagree_is_rejected(members: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        order_with(**members)


def test_paid_is_reached_with_a_payment_only() -> None:
    with pytest.raises(ValueError, match="payment_id"):
        order_in(OrderStatus.PENDING_PAYMENT).changed(ChangeReason.PAID, ORIGIN)

"""The table of order states, pair by pair."""

from __future__ import annotations

import itertools

import pytest

from orders.domain.errors import IllegalTransitionError
from orders.domain.order import Order, OrderLine, StatusChange
from orders.domain.order_status import TRANSITIONS, ChangeReason, OrderStatus, next_status

# Written out by hand, so that a slip in the table is seen: from, why, to.
ALLOWED = {
    ("PENDING_PAYMENT", "paid"): "AWAITING_SHIPMENT",
    ("PENDING_PAYMENT", "expired"): "CLOSED",
    ("PENDING_PAYMENT", "cancelled"): "CLOSED",
    ("AWAITING_SHIPMENT", "shipped"): "SHIPPED",
    ("SHIPPED", "received"): "COMPLETED",
}


def order_in(status: OrderStatus) -> Order:
    closed_at_ms = 5 if status is OrderStatus.CLOSED else None
    payment = ("payment-1", 4) if status in {"AWAITING_SHIPMENT", "SHIPPED", "COMPLETED"} else (None, None)
    return Order("o", "b", (OrderLine("p", 2, 50),), 100, "CNY", status, 1, 9, closed_at_ms, *payment)


def change_of(order: Order, reason: ChangeReason) -> tuple[Order, StatusChange]:
    return order.paid("payment-2", 6, 7) if reason is ChangeReason.PAID else order.changed(reason, 7)


@pytest.mark.parametrize(("status", "reason"), list(itertools.product(OrderStatus, ChangeReason)))
def test_every_pair_of_status_and_reason_follows_the_table(status: OrderStatus, reason: ChangeReason) -> None:
    order = order_in(status)
    expected = ALLOWED.get((status.value, reason.value))
    if expected is None:
        with pytest.raises(IllegalTransitionError, match=f"{status} cannot be {reason}"):
            change_of(order, reason)
        with pytest.raises(IllegalTransitionError):
            next_status(status, reason)
    else:
        changed, change = change_of(order, reason)
        assert changed.status == expected
        assert changed.closed_at_ms == (7 if expected == "CLOSED" else None)
        kept = (order.payment_id, order.paid_at_ms)
        assert (changed.payment_id, changed.paid_at_ms) == (("payment-2", 6) if reason == "paid" else kept)
        assert change == StatusChange("o", status, OrderStatus(expected), reason, 7)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(OrderStatus, OrderStatus)))
def test_every_pair_of_statuses_is_reachable_exactly_if_the_table_says_so(old: OrderStatus, new: OrderStatus) -> None:
    reachable = {target for (source, _), target in TRANSITIONS.items() if source is old}
    assert (new in reachable) == any(
        source == old.value and target == new.value for (source, _), target in ALLOWED.items()
    )


def test_no_state_is_left_once_an_order_is_completed_or_closed() -> None:
    assert {source for source, _ in TRANSITIONS} == set(OrderStatus) - {OrderStatus.COMPLETED, OrderStatus.CLOSED}


def test_an_order_whose_total_is_not_the_sum_of_its_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="sum of its lines"):
        Order("o", "b", (OrderLine("p", 2, 50),), 99, "CNY", OrderStatus.PENDING_PAYMENT, 1, 9)


def test_a_closed_order_without_the_time_of_its_closing_is_refused() -> None:
    with pytest.raises(ValueError, match="closed_at_ms"):
        Order("o", "b", (OrderLine("p", 2, 50),), 100, "CNY", OrderStatus.CLOSED, 1, 9)


@pytest.mark.parametrize(
    ("status", "payment_id", "paid_at_ms"),
    [
        (OrderStatus.AWAITING_SHIPMENT, None, 5),
        (OrderStatus.AWAITING_SHIPMENT, "payment-1", None),
        (OrderStatus.PENDING_PAYMENT, "payment-1", 5),
    ],
)
def test_an_order_whose_payment_and_status_disagree_is_refused(
    status: OrderStatus, payment_id: str | None, paid_at_ms: int | None
) -> None:
    with pytest.raises(ValueError, match="payment_id"):
        Order("o", "b", (OrderLine("p", 2, 50),), 100, "CNY", status, 1, 9, None, payment_id, paid_at_ms)


def test_paid_is_reached_with_a_payment_only() -> None:
    with pytest.raises(ValueError, match="payment_id"):
        order_in(OrderStatus.PENDING_PAYMENT).changed(ChangeReason.PAID, 7)

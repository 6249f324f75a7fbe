"""The table of payment states, and that of payable orders, pair by pair."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from payments.domain.errors import IllegalTransitionError, RefundMismatchError
from payments.domain.payable_order import PayableOrder, PayableStatus, Terms
from payments.domain.payment import Payment, PaymentMethod, PaymentRequest, StatusChange, begin
from payments.domain.payment_status import TRANSITIONS, ChangeReason, PaymentStatus, next_status
from payments.domain.refund import RefundRequest, refund_id_of, refund_of

# Written out by hand, so that a slip in the table is seen: from, why, to.
ALLOWED = {
    ("CREATED", "captured"): "CAPTURED",
    ("CREATED", "declined"): "DECLINED",
    ("CAPTURED", "refunded"): "REFUNDED",
}
REQUEST = PaymentRequest("o", "b", 100, "CNY", PaymentMethod.CARD)


def payment_in(status: PaymentStatus) -> Payment:
    took_money = status in {PaymentStatus.CAPTURED, PaymentStatus.REFUNDED}
    return Payment(
        payment_id="p",
        order_id="o",
        buyer_id="b",
        amount_minor=100,
        currency="CNY",
        method=PaymentMethod.CARD,
        status=status,
        created_at_ms=1,
        captured_at_ms=5 if took_money else None,
        refunded_at_ms=6 if status is PaymentStatus.REFUNDED else None,
        decline_reason="no" if status is PaymentStatus.DECLINED else None,
    )


def changed(payment: Payment, reason: ChangeReason) -> tuple[Payment, StatusChange]:
    if reason is ChangeReason.CAPTURED:
        return payment.captured(7)
    if reason is ChangeReason.DECLINED:
        return payment.declined("no", 7)
    return payment.refunded(7)


@pytest.mark.parametrize(("status", "reason"), list(itertools.product(PaymentStatus, ChangeReason)))
def test_every_pair_of_status_and_reason_follows_the_table(status: PaymentStatus, reason: ChangeReason) -> None:
    expected = ALLOWED.get((status.value, reason.value))
    if expected is None:
        with pytest.raises(IllegalTransitionError, match=f"{status} cannot be {reason}"):
            next_status(status, reason)
        if reason is not ChangeReason.REQUESTED:
            with pytest.raises(IllegalTransitionError):
                changed(payment_in(status), reason)
    else:
        payment, change = changed(payment_in(status), reason)
        assert payment.status == expected
        assert change == StatusChange("p", status, PaymentStatus(expected), reason, 7)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(PaymentStatus, PaymentStatus)))
def test_every_pair_of_statuses_is_reachable_exactly_if_the_table_says_so(
    old: PaymentStatus, new: PaymentStatus
) -> None:
    reachable = {target for (source, _), target in TRANSITIONS.items() if source is old}
    assert (new in reachable) == any(
        source == old.value and target == new.value for (source, _), target in ALLOWED.items()
    )


def test_a_payment_begins_as_an_intent() -> None:
    payment, first = begin("p", REQUEST, 1)
    assert payment == payment_in(PaymentStatus.CREATED)
    assert first == StatusChange("p", None, PaymentStatus.CREATED, ChangeReason.REQUESTED, 1)


def test_a_refunded_payment_is_still_answered_as_captured() -> None:
    for status in PaymentStatus:
        payment = payment_in(status)
        expected = payment_in(PaymentStatus.CAPTURED) if status is PaymentStatus.REFUNDED else payment
        assert payment.as_answered() == expected


@pytest.mark.parametrize("status", PaymentStatus)
def test_a_payment_whose_times_or_reason_do_not_belong_to_its_status_is_refused(status: PaymentStatus) -> None:
    payment = payment_in(status)
    with pytest.raises(ValueError, match="its times or its reason"):
        replace(payment, captured_at_ms=None if payment.captured_at_ms else 5)
    with pytest.raises(ValueError, match="its times or its reason"):
        replace(payment, refunded_at_ms=None if payment.refunded_at_ms else 5)
    with pytest.raises(ValueError, match="its times or its reason"):
        replace(payment, decline_reason=None if payment.decline_reason else "no")


def test_a_payment_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        begin("p", replace(REQUEST, amount_minor=0), 1)


TERMS = Terms("b", 100, "CNY", 9)
# What an order becomes that stands in the first status when an event tells the second.
MERGED = {
    ("OPEN", "OPEN"): "OPEN",
    ("OPEN", "PAID"): "PAID",
    ("OPEN", "CLOSED"): "CLOSED",
    ("PAID", "OPEN"): "PAID",
    ("PAID", "PAID"): "PAID",
    ("PAID", "CLOSED"): "CLOSED",
    ("CLOSED", "OPEN"): "CLOSED",
    ("CLOSED", "PAID"): "CLOSED",
    ("CLOSED", "CLOSED"): "CLOSED",
}


@pytest.mark.parametrize(("known", "told"), list(itertools.product(PayableStatus, PayableStatus)))
def test_an_order_only_moves_forward(known: PayableStatus, told: PayableStatus) -> None:
    merged = PayableOrder("o", known, TERMS).merged(PayableOrder("o", told, TERMS))
    assert merged == PayableOrder("o", PayableStatus(MERGED[known.value, told.value]), TERMS)


@pytest.mark.parametrize("events", list(itertools.permutations(PayableStatus)))
def test_every_order_of_the_events_leads_to_the_same_end(events: tuple[PayableStatus, ...]) -> None:
    def told(status: PayableStatus) -> PayableOrder:
        return PayableOrder("o", status, TERMS if status is PayableStatus.OPEN else None)

    order = told(events[0])
    for status in (*events[1:], *events):
        order = order.merged(told(status))
    assert order == PayableOrder("o", PayableStatus.CLOSED, TERMS)


def test_an_open_order_without_terms_is_refused() -> None:
    with pytest.raises(ValueError, match="without buyer and total"):
        PayableOrder("o", PayableStatus.OPEN, None)


@pytest.mark.parametrize("change", [{"order_id": "x"}, {"amount_minor": 99}, {"currency": "EUR"}])
def test_a_refund_of_other_money_than_the_payments_is_refused(change: dict[str, object]) -> None:
    wanted = RefundRequest("o", "p", 100, "CNY", "why")
    payment = payment_in(PaymentStatus.CAPTURED)
    assert refund_of(payment, wanted, 3).refund_id == refund_id_of("p")
    with pytest.raises(RefundMismatchError):
        refund_of(payment, replace(wanted, **change), 3)  # type: ignore[arg-type]

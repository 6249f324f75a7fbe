"""The table of payment states, and that of payable orders, pair by pair."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from payments.domain.errors import (
    IllegalTransitionError,
    NotCapturedYetError,
    RefundMismatchError,
    RefundTooLargeError,
)
from payments.domain.gateway_event import PayableOrder, PayableStatus, Terms
from payments.domain.payment import (
    TOOK_MONEY,
    TRANSITIONS,
    ChangeReason,
    Payment,
    PaymentMethod,
    PaymentRequest,
    PaymentStatus,
    StatusChange,
    begin,
    next_status,
)
from payments.domain.refund import (
    Refund,
    RefundChange,
    RefundRequest,
    RefundStatus,
    WholeRefundRequest,
    part_of,
    refund_id_of_key,
    rest_of,
    whole_refund_id,
)

# Written out by hand, so that a slip in the table is seen: from, why, to.
ALLOWED = {
    ("CREATED", "captured"): "CAPTURED",
    ("CREATED", "declined"): "DECLINED",
    ("DECLINED", "captured"): "CAPTURED",  # the gateway has taken the money all the same
    ("CAPTURED", "partially refunded"): "PARTIALLY_REFUNDED",
    ("CAPTURED", "refunded"): "REFUNDED",
    ("PARTIALLY_REFUNDED", "partially refunded"): "PARTIALLY_REFUNDED",
    ("PARTIALLY_REFUNDED", "refunded"): "REFUNDED",
}
REQUEST = PaymentRequest("o", "b", 100, "CNY", PaymentMethod.CARD)


def payment_in(status: PaymentStatus) -> Payment:
    refunded_minor = {PaymentStatus.PARTIALLY_REFUNDED: 30, PaymentStatus.REFUNDED: 100}.get(status, 0)
    return Payment(
        payment_id="p",
        order_id="o",
        buyer_id="b",
        amount_minor=100,
        currency="CNY",
        method=PaymentMethod.CARD,
        status=status,
        created_at_ms=1,
        captured_at_ms=5 if status in TOOK_MONEY else None,
        refunded_at_ms=6 if status is PaymentStatus.REFUNDED else None,
        decline_reason="no" if status is PaymentStatus.DECLINED else None,
        refund_requested_minor=100 if status in TOOK_MONEY else 0,
        refunded_minor=refunded_minor,
    )


def changed(payment: Payment, reason: ChangeReason) -> tuple[Payment, StatusChange]:
    if reason is ChangeReason.CAPTURED:
        return payment.captured(7)
    if reason is ChangeReason.DECLINED:
        return payment.declined("no", 7)
    rest_minor = payment.amount_minor - payment.refunded_minor
    return payment.refunded(rest_minor if reason is ChangeReason.REFUNDED else 1, 7)


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
    assert payment.refundable_minor == 100
    assert first == StatusChange("p", None, PaymentStatus.CREATED, ChangeReason.REQUESTED, 1)


def test_a_refunded_payment_is_still_answered_as_captured() -> None:
    captured = replace(payment_in(PaymentStatus.CAPTURED), refund_requested_minor=0)
    for status in PaymentStatus:
        payment = payment_in(status)
        assert payment.as_answered() == (captured if status in TOOK_MONEY else payment)


@pytest.mark.parametrize("status", PaymentStatus)
def test_a_payment_whose_times_or_reason_do_not_belong_to_its_status_is_rejected(status: PaymentStatus) -> None:
    payment = payment_in(status)
    with pytest.raises(ValueError, match="its times or its reason"):
        replace(payment, captured_at_ms=None if payment.captured_at_ms else 5)
    with pytest.raises(ValueError, match="its times or its reason"):
        replace(payment, refunded_at_ms=None if payment.refunded_at_ms else 5)
    if status in TOOK_MONEY:
        assert replace(payment, decline_reason="no").as_answered().decline_reason == "no"
        return
    with pytest.raises(ValueError, match="its times or its reason"):
        replace(payment, decline_reason=None if payment.decline_reason else "no")


@pytest.mark.parametrize("status", PaymentStatus)
def test_a_payment_whose_refunds_do_not_belong_to_its_status_is_rejected(status: PaymentStatus) -> None:
    payment = payment_in(status)
    wrong = {0, 30, 100} - {payment.refunded_minor}
    for refunded_minor in wrong:
        with pytest.raises(ValueError, match="the sums of its refunds"):
            replace(payment, refunded_minor=refunded_minor, refund_requested_minor=100)
    for sums in ((-1, 0), (1, 0), (0, 101), (101, 101)):
        with pytest.raises(ValueError, match="the sums of its refunds"):
            replace(payment, refunded_minor=sums[0], refund_requested_minor=sums[1])


def test_a_payment_that_is_captured_after_it_was_declined_keeps_the_reason() -> None:
    assert payment_in(PaymentStatus.DECLINED).captured(7)[0].decline_reason == "no"


def test_no_more_goes_back_than_was_asked_for() -> None:
    payment = replace(payment_in(PaymentStatus.CAPTURED), refund_requested_minor=50)
    with pytest.raises(ValueError, match="the sums of its refunds"):
        payment.refunded(51, 7)


def test_a_payment_of_nothing_is_rejected() -> None:
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


def test_an_open_order_without_terms_is_rejected() -> None:
    with pytest.raises(ValueError, match="without buyer and total"):
        PayableOrder("o", PayableStatus.OPEN, None)


WHOLE = WholeRefundRequest("o", "p", 100, "CNY", "why")


def with_asked_back(amount_minor: int) -> Payment:
    return replace(payment_in(PaymentStatus.CAPTURED), refund_requested_minor=amount_minor)


@pytest.mark.parametrize("change", [{"order_id": "x"}, {"amount_minor": 99}, {"currency": "EUR"}])
def test_a_whole_refund_of_other_money_than_the_payments_is_rejected(change: dict[str, object]) -> None:
    with pytest.raises(RefundMismatchError):
        rest_of(with_asked_back(0), replace(WHOLE, **change), "orders", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked_minor", "rest_minor"), [(0, 100), (1, 99), (99, 1)])
def test_a_whole_refund_is_of_the_rest_without_a_request(asked_minor: int, rest_minor: int) -> None:
    expected = Refund("refund-p", "p", rest_minor, "CNY", "why", "orders", 3)
    assert rest_of(with_asked_back(asked_minor), WHOLE, "orders", 3) == expected
    assert expected.refund_id == whole_refund_id("p")


def test_a_whole_refund_of_a_payment_without_a_rest_is_none() -> None:
    assert rest_of(with_asked_back(100), WHOLE, "orders", 3) is None


def test_a_part_is_refunded_up_to_the_rest_and_not_beyond() -> None:
    payment = with_asked_back(60)
    part = part_of(payment, RefundRequest("p", 40, "why"), "r", "operator", 3)
    assert part == Refund("r", "p", 40, "CNY", "why", "operator", 3)
    with pytest.raises(RefundTooLargeError) as rejected:
        part_of(payment, RefundRequest("p", 41, "why"), "r", "operator", 3)
    assert (rejected.value.amount_minor, rejected.value.refundable_minor) == (41, 40)


@pytest.mark.parametrize(
    ("status", "error"),
    [(PaymentStatus.CREATED, NotCapturedYetError), (PaymentStatus.DECLINED, IllegalTransitionError)],
)
def test_nothing_goes_back_of_a_payment_that_took_nothing(status: PaymentStatus, error: type[Exception]) -> None:
    with pytest.raises(error):
        rest_of(payment_in(status), WHOLE, "orders", 3)
    with pytest.raises(error):
        part_of(payment_in(status), RefundRequest("p", 1, "why"), "r", "operator", 3)


ALLOWED_OF_REFUNDS = {
    ("REQUESTED", "refunded"): "REFUNDED",
    ("REQUESTED", "failed"): "FAILED",
    ("FAILED", "retried"): "REQUESTED",
    ("FAILED", "refunded"): "REFUNDED",
}


@pytest.mark.parametrize(("status", "change"), list(itertools.product(RefundStatus, RefundChange)))
def test_every_pair_of_a_refunds_status_and_change_follows_the_table(
    status: RefundStatus, change: RefundChange
) -> None:
    refund = Refund(
        "r",
        "p",
        40,
        "CNY",
        "why",
        "who",
        3,
        status,
        refunded_at_ms=4 if status is RefundStatus.REFUNDED else None,
        failure="no" if status is RefundStatus.FAILED else None,
    )
    act = {
        RefundChange.REFUNDED: lambda: refund.refunded(9),
        RefundChange.FAILED: lambda: refund.failed("no more"),
        RefundChange.RETRIED: refund.retried,
    }[change]
    expected = ALLOWED_OF_REFUNDS.get((status.value, change.value))
    if expected is None:
        with pytest.raises(IllegalTransitionError, match=f"a refund that is {status} cannot be {change}"):
            act()
    else:
        changed_ = act()
        assert changed_.status == expected
        assert changed_.failure == ("no more" if expected == "FAILED" else None)
    with pytest.raises(ValueError, match="and failure is"):
        replace(refund, failure=None if refund.failure else "no")


def test_a_refund_ends_once() -> None:
    refund = part_of(with_asked_back(0), RefundRequest("p", 40, "why"), "r", "operator", 3)
    done = refund.refunded(9)
    assert (done.status, done.refunded_at_ms) == (RefundStatus.REFUNDED, 9)
    with pytest.raises(IllegalTransitionError):
        done.refunded(10)
    with pytest.raises(ValueError, match="refunded_at_ms"):
        replace(refund, refunded_at_ms=1)
    with pytest.raises(ValueError, match="at least 1"):
        replace(refund, amount_minor=0)


def test_the_refunds_of_two_keys_and_of_orders_never_share_an_id() -> None:
    ids = {refund_id_of_key(*who) for who in (("a", "k"), ("a", "k2"), ("b", "k"))} | {whole_refund_id("p" * 32)}
    assert len(ids) == 4
    assert refund_id_of_key("a", "k") == refund_id_of_key("a", "k")

"""The books: those that agree have no problem, and every way to disagree is a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hourglass_local.books import Books, is_settled, money_problems, order_problems, stock_problems
from hourglass_local.payment_desk import CREATED, REFUNDED
from hourglass_local.plan import RACE_MS, Pays
from hourglass_local.races import Races
from hourglass_local.shop import Order, Product
from hourglass_local.testing import (
    BEFORE,
    EXPIRY_MS,
    GOOD,
    SEAT,
    attempt,
    books,
    closed,
    paid,
    payment,
    pending,
)


def found(broken: Books) -> list[str]:
    return [*order_problems(broken), *stock_problems(BEFORE, broken), *money_problems(broken)]


def test_books_that_agree_have_no_problem() -> None:
    assert found(GOOD) == []
    assert is_settled(GOOD.order_statistics, GOOD.payment_statistics)


@pytest.mark.parametrize(
    ("orders", "sentences"),
    [
        ([closed("b"), pending("x")], ["1 of 2 orders are still pending long after their expiry"]),
        ([closed("b", -1)], ["1 orders were closed before their expiry: b"]),
    ],
)
def test_order_that_ends_wrong_is_a_sentence(orders: list[Order], sentences: list[str]) -> None:
    assert order_problems(books(orders, [])) == sentences


@pytest.mark.parametrize(
    "stock",
    [
        {SEAT.product_id: replace(SEAT, available=49, sold=1)},
        {SEAT.product_id: replace(SEAT, available=46, reserved=2, sold=2)},
        {SEAT.product_id: SEAT},
        {},
    ],
)
def test_unit_at_the_wrong_place_is_a_sentence(stock: dict[str, Product]) -> None:
    (sentence,) = stock_problems(BEFORE, replace(GOOD, products=stock))
    assert sentence.startswith("the stock of G1-first does not add up: (on sale, reserved, sold) has to be (48, 0, 2)")


def statistics(**changed: int) -> Books:
    return replace(GOOD, payment_statistics=replace(GOOD.payment_statistics, **changed))  # type: ignore[arg-type]


def gateway(**changed: int) -> Books:
    book = replace(GOOD.payment_statistics.gateway, **changed)
    return replace(GOOD, payment_statistics=replace(GOOD.payment_statistics, gateway=book))


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (gateway(captured_minor=373_201), "the gateway keeps 186601 and the paid orders cost 186600"),
        (gateway(refunded_minor=0), "the gateway keeps 373200 and the paid orders cost 186600"),
        (gateway(refunds=2), "the books count different payments"),
        (statistics(captured_minor=186_600), "the database of payments keeps 0 and the paid orders cost 186600"),
        (books([closed("c")], [payment("p", "c")]), "1 captured payments have paid no order and were not refunded: p"),
        (books([paid("a", "p")], [payment("p", "a", REFUNDED)]), "1 refunded payments have paid their order all the"),
        (books([paid("a", "q")], [payment("p", "a")]), "1 paid orders name a payment that is not there: a"),
        (books([closed("c")], [payment("p", "c", CREATED)]), "1 payments are neither captured nor declined: p"),
        (
            books([paid("a", "p")], [replace(payment("p", "a"), amount_minor=1)]),
            "1 payments are of another amount than their order: p",
        ),
        (
            replace(GOOD, order_statistics=replace(GOOD.order_statistics, refund_requests=0)),
            "the books count different payments; (kept, refunded) is "
            "{'gateway': (1, 1), 'payments': (1, 1), 'orders': (1, 0)}",
        ),
    ],
)
def test_money_that_is_not_where_it_has_to_be_is_a_sentence(broken: Books, sentence: str) -> None:
    assert any(problem.startswith(sentence) for problem in money_problems(broken)), money_problems(broken)


@pytest.mark.parametrize(
    "unsettled",
    [
        books([pending("x")], []),
        books([closed("c")], [payment("p", "c", CREATED)]),
        books([closed("c")], [payment("p", "c")]),  # orders has not heard of the payment yet
        replace(GOOD, order_statistics=replace(GOOD.order_statistics, refund_requests=2)),  # one is still to be done
    ],
)
def test_books_in_which_something_moves_are_not_settled(unsettled: Books) -> None:
    assert not is_settled(unsettled.order_statistics, unsettled.payment_statistics)


def test_races_are_payments_around_the_expiry_that_won_at_last_or_lost() -> None:
    at_last, before = EXPIRY_MS - RACE_MS, EXPIRY_MS - RACE_MS - 1
    payments = [
        payment("p", "a", captured_at_ms=at_last),
        payment("q", "b", captured_at_ms=before),
        payment("r", "c", REFUNDED),
        payment("s", "e"),
    ]
    end = books([paid("a", "p"), paid("b", "q"), closed("c"), closed("d"), paid("e", "s")], payments)
    attempts = [attempt(Pays.AT_EXPIRY, end.payments[payment_id]) for payment_id in "pqr"]
    attempts += [attempt(Pays.AT_EXPIRY, None), attempt(Pays.TOO_LATE, None), attempt(Pays.SOON, end.payments["s"])]
    races = Races.of(attempts, end.orders, end.payments)
    assert (races.won, races.refunded, races.refused, races.total) == (1, 1, 1, 3)

"""The books: those that agree have no problem, and every way to disagree is a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hourglass_local.books import Books, kept_minor, money_problems, order_problems, stock_problems
from hourglass_local.plan import RACE_MS, Pays
from hourglass_local.shop import DECLINED, PARTIALLY_REFUNDED, REFUNDED, Order, Product
from hourglass_local.summary import Races
from hourglass_local.testing import (
    BEFORE,
    EXPIRY_MS,
    GOOD,
    PRICE_MINOR,
    SEAT,
    attempt,
    books,
    closed,
    paid,
    payment,
    pending,
)

PART_REFUNDED = books([paid("a", "p")], [payment("p", "a", PARTIALLY_REFUNDED)], {"p": 300})
CANCELLED_BY_SELLER = books(
    [replace(closed("a", -1), payment_id="p"), paid("b", "q")], [payment("p", "a", REFUNDED), payment("q", "b")]
)


def found(broken: Books, cancelled: frozenset[str] = frozenset()) -> list[str]:
    return [*order_problems(broken, cancelled), *stock_problems(BEFORE, broken), *money_problems(broken)]


@pytest.mark.parametrize(
    ("good", "cancelled"), [(GOOD, frozenset()), (PART_REFUNDED, frozenset()), (CANCELLED_BY_SELLER, frozenset("a"))]
)
def test_books_that_agree_have_no_problem(good: Books, cancelled: frozenset[str]) -> None:
    assert found(good, cancelled) == []


def test_the_shop_keeps_what_was_paid_without_what_went_back() -> None:
    assert kept_minor(GOOD) == kept_minor(CANCELLED_BY_SELLER) == 2 * PRICE_MINOR
    assert kept_minor(PART_REFUNDED) == 2 * PRICE_MINOR - 300


@pytest.mark.parametrize(
    ("orders", "cancelled", "sentences"),
    [
        ([closed("b"), pending("x")], "", ["1 of 2 orders are still pending long after their expiry"]),
        ([closed("b", -1)], "", ["1 orders were closed before their expiry: b"]),
        ([closed("b", -1), paid("a", "p")], "ab", ["1 orders were cancelled and are not closed: a"]),
        ([closed("b", -1)], "bz", ["1 orders were cancelled and are not closed: z"]),
    ],
)
def test_order_that_ends_wrong_is_a_sentence(orders: list[Order], cancelled: str, sentences: list[str]) -> None:
    assert order_problems(books(orders, []), set(cancelled)) == sentences


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
        (gateway(captured_minor=373_201), "the gateway keeps 186601 and the paid orders come to 186600"),
        (gateway(refunded_minor=0), "the gateway keeps 373200 and the paid orders come to 186600"),
        (gateway(refunds=2), "the gateway counts 2 captures and 2 refunds, payments 2 and 1"),
        (statistics(captured_minor=186_600), "the database of payments keeps 0 and the paid orders come to 186600"),
        (
            statistics(captured_minor=373_201),
            "captured and refunded are 373200 and 186600 at the gateway and 373201 and",
        ),
        (books([closed("c")], [payment("p", "c")]), "the gateway keeps 186600 and the paid orders come to 0"),
        (replace(PART_REFUNDED, refunds={}), "the gateway keeps 186300 and the paid orders come to 186600"),
    ],
)
def test_money_that_is_not_where_it_has_to_be_is_a_sentence(broken: Books, sentence: str) -> None:
    assert any(problem.startswith(sentence) for problem in money_problems(broken)), money_problems(broken)


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
    attempts += [
        attempt(Pays.AT_EXPIRY, None),
        attempt(Pays.AT_EXPIRY, payment("t", "d", DECLINED)),
        attempt(Pays.TOO_LATE, None),
        attempt(Pays.SOON, end.payments["s"]),
    ]
    races = Races.of(attempts, end.orders, end.payments)
    assert (races.won, races.refunded, races.rejected, races.total) == (1, 1, 2, 4)

"""The plan of G10, and its judgement: each way to be wrong is a sentence. test_system_shop_faults.py plays a round."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import httpx
import pytest
from shop_plan import (
    BEFORE_LONG_ORDERS,
    GATEWAY,
    LAST_SEATS,
    LAST_SEATS_UNITS,
    LONG_OUTAGES,
    LONG_S,
    Deed,
    Way,
    make_plan,
)
from shop_rounds import LONGEST_S, ROUND_ORDERS, SWEEP_LONG_OUTAGES, SWEEP_ORDERS, victims
from shop_truth import Truth, problems
from shop_victims import Away

from hourglass_local.books import Books
from hourglass_local.plan import Then
from hourglass_local.shop import CLOSED, DECLINED, REFUNDED
from hourglass_local.testing import GOOD, payment


def truth() -> Truth:
    """What has been told of GOOD, and is all so."""
    told = Truth()
    for order in GOOD.orders.values():
        told.order(order.buyer_id, f"key of {order.order_id}", order)
    told.payment(GOOD.payments["pay-a"])
    told.cancelled.add("b")
    told.refunded["refund-pay-c"] = GOOD.payments["pay-c"].amount_minor
    return told


@pytest.mark.parametrize("postgresql", [True, False])
def test_a_round_has_every_kind_of_buyer_and_of_fault(postgresql: bool) -> None:
    names = victims(postgresql=postgresql)
    for seed in range(1, 20):
        plan = make_plan(seed, ROUND_ORDERS, names)
        assert plan == make_plan(seed, ROUND_ORDERS, names)
        assert {purchase.way for purchase in plan.purchases} == set(Way)
        assert {purchase.then for purchase in plan.purchases} == set(Then)
        assert len(plan.purchases) == len({purchase.buyer_id for purchase in plan.purchases}) == ROUND_ORDERS
        alone = {(blow.deed, *blow.victims) for blow in plan.blows if len(blow.victims) == 1}
        assert alone == {(deed, name) for deed in Deed for name in names}
        assert any(len(blow.victims) == 2 for blow in plan.blows)
        assert sum(blow.is_long for blow in plan.blows) == LONG_OUTAGES
    assert make_plan(1, 20, names) != make_plan(2, 20, names)


def test_a_long_outage_outlasts_every_time_out_and_takes_all_instances_of_a_service() -> None:
    assert LONG_S[0] > LONGEST_S
    names = victims(postgresql=True)
    long_ones = [blow for seed in range(1, 20) for blow in make_plan(seed, ROUND_ORDERS, names).blows if blow.is_long]
    assert {name for blow in long_ones for name in blow.victims} == set(names)
    assert {blow.victims for blow in long_ones if len(blow.victims) == 2} == {
        ("orders", "orders-2"),
        ("payments", "payments-2"),
    }
    plan = make_plan(1, ROUND_ORDERS, names, [(Deed.PAUSE, (GATEWAY,))])
    (alone,) = plan.blows
    assert (alone.is_long, alone.deed, alone.victims) == (True, Deed.PAUSE, (GATEWAY,))
    assert sum(purchase.at_s < alone.after_s for purchase in plan.purchases) >= BEFORE_LONG_ORDERS


@pytest.mark.parametrize("postgresql", [True, False])
def test_in_a_round_of_the_sweep_every_service_is_away_for_long_and_has_orders_meanwhile(postgresql: bool) -> None:
    names = victims(postgresql=postgresql)
    plan = make_plan(1, SWEEP_ORDERS, names, long_outages=SWEEP_LONG_OUTAGES)
    long_ones = {index: blow for index, blow in enumerate(plan.blows) if blow.is_long}
    assert sorted(name for blow in long_ones.values() for name in blow.victims) == sorted(names)
    per_blow = Counter(purchase.blow for purchase in plan.purchases)
    whole_s = sum(blow.lasts_s for blow in plan.blows)
    for index, blow in enumerate(plan.blows):
        assert per_blow[index] == pytest.approx(SWEEP_ORDERS * blow.lasts_s / whole_s, abs=1)
    assert all(per_blow[index] >= SWEEP_ORDERS // 10 for index in long_ones)


def test_orders_that_met_a_long_outage_are_counted() -> None:
    orders = {
        name: replace(order, status=CLOSED, expires_at_ms=at_ms)
        for name, order, at_ms in zip("abc", GOOD.orders.values(), (999, 1_000, 2_000), strict=False)
    }
    payments = {name: payment(name, "a", captured_at_ms=at_ms) for name, at_ms in (("p", 500), ("q", 1_999))}
    assert Away("db", 100, 1_000, 2_000).met(replace(GOOD, orders=orders, payments=payments)) == {
        "captured before db went": 1,
        "captured without db": 1,
        "expired and closed without db": 1,
    }


def test_of_the_last_seats_there_are_fewer_than_are_wanted() -> None:
    plan = make_plan(1, ROUND_ORDERS, victims(postgresql=True))
    wanted = Counter[str]()
    for purchase in plan.purchases:
        wanted.update(purchase.items)
    units = {product.product_id: product.available for product in plan.products}
    assert wanted[LAST_SEATS] > units[LAST_SEATS] == LAST_SEATS_UNITS
    assert all(units[seat] >= count for seat, count in wanted.items() if seat != LAST_SEATS)


def test_what_clients_were_told_is_so() -> None:
    assert problems(truth(), GOOD) == []


def test_a_key_makes_one_order_and_a_payment_is_decided_once() -> None:
    told = truth()
    told.order("buyer-1", "key of a", GOOD.orders["b"])
    told.order("buyer-2", "key of a", GOOD.orders["b"])  # another buyer's key
    told.payment(replace(GOOD.payments["pay-a"], status=REFUNDED))
    told.payment(replace(GOOD.payments["pay-a"], status=DECLINED))
    assert problems(told, GOOD) == [
        "buyer-1 placed two orders with the key key of a: a and b",
        "payment pay-a was answered as CAPTURED and as DECLINED",
    ]


async def test_an_internal_error_is_never_an_answer() -> None:
    told = Truth()
    for status in (201, 409, 503):
        await told.see(httpx.Response(status, request=httpx.Request("POST", "http://shop/orders")))
    assert told.wrong == []
    await told.see(httpx.Response(500, text="oh", request=httpx.Request("POST", "http://shop/orders")))
    assert told.wrong == ["POST /orders was answered 500: oh"]


def _without(books: Books, order_id: str) -> Books:
    return replace(books, orders={key: order for key, order in books.orders.items() if key != order_id})


@pytest.mark.parametrize(
    ("changed", "books", "sentence"),
    [
        ({}, _without(GOOD, "c"), "1 orders were answered with 201 and are not there: c"),
        (
            {},
            replace(GOOD, orders={**GOOD.orders, "z": replace(GOOD.orders["c"], order_id="z")}),
            "1 orders are there without an answer: z",
        ),
        (
            {},
            replace(GOOD, orders={**GOOD.orders, "c": replace(GOOD.orders["c"], total_minor=1)}),
            "order c was answered",
        ),
        ({"shipped": {"a"}}, GOOD, "1 orders were answered as shipped and are not: a"),
        ({"confirmed": {"a"}}, GOOD, "1 orders were answered as confirmed and are not: a"),
        ({"cancelled": {"a", "b"}}, GOOD, "1 orders were answered as cancelled and are not: a"),
        ({"paid": {"x": payment("x", "a")}}, GOOD, "1 payments were answered and are not there: x"),
        (
            {"paid": {"pay-a": payment("pay-a", "a")}},
            replace(GOOD, payments={"pay-a": payment("pay-a", "a", DECLINED)}),
            "1 payments were answered as CAPTURED and are not: pay-a",
        ),
        (
            {"paid": {"pay-a": payment("pay-a", "a", DECLINED)}},
            GOOD,
            "1 payments were answered as DECLINED and are not: pay-a",
        ),
        ({"refunded": {"r": 5}}, GOOD, "a refund r of 5 was answered, and there is None"),
    ],
)
def test_what_was_told_and_is_not_so_is_a_sentence(changed: dict[str, object], books: Books, sentence: str) -> None:
    (found,) = problems(replace(truth(), **changed), books)  # type: ignore[arg-type]
    assert found.startswith(sentence)

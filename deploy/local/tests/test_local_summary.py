"""What a demonstration came to, and what is wrong with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hourglass_local.cluster import StopReport
from hourglass_local.shop import Order, Product
from hourglass_local.summary import CLOSED, PENDING, Lateness, Shopped, percentile, problems, summarize

STOPPED = StopReport((), (), ())
SEAT = Product("G1-first", "Seat", 93_300, "CNY", 50)


def closed(number: int, late_ms: int = 20) -> Order:
    return Order(f"order-{number}", CLOSED, 10_000, 10_000 + late_ms)


def shopped(*orders: Order, wanted: int = 2) -> Shopped:
    stock = {SEAT.product_id: SEAT}
    return Shopped(wanted, {order.order_id: order for order in orders}, stock, dict(stock), 800)


GOOD = shopped(closed(1, 20), closed(2, 40))


def found(result: Shopped, stopped: StopReport = STOPPED) -> list[str]:
    return problems(summarize(result, [], stopped, 1.0), result, stopped)


def test_good_run_has_no_problem() -> None:
    summary = summarize(GOOD, [], STOPPED, 16.04)
    assert found(GOOD) == []
    assert (summary.orders_placed, summary.closed, summary.pending) == (2, 2, 0)
    assert (summary.stock_before, summary.stock_after, summary.stock_conserved) == (50, 50, True)
    assert summary.close_lateness_ms == Lateness(20, 40, 40)
    assert summary.duration_s == 16.0


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (shopped(closed(1)), "2 orders were wanted and the shop has 1"),
        (shopped(closed(1), Order("x", PENDING, 1, None)), "1 of 2 orders are still pending long after their expiry"),
        (shopped(closed(1), Order("x", "COMPLETED", 1, None)), "only 1 of 2 orders are closed, although nobody paid"),
        (shopped(closed(1), closed(2, -1)), "1 orders were closed before their expiry"),
        (
            replace(GOOD, products_after={SEAT.product_id: replace(SEAT, available=49, reserved=1)}),
            "the stock does not add up: 50 units on sale before, 49 after",
        ),
    ],
)
def test_each_broken_promise_is_a_sentence(result: Shopped, sentence: str) -> None:
    assert found(result) == [sentence]


@pytest.mark.parametrize(
    ("stopped", "sentence"),
    [
        (StopReport(("orders",), (), ()), "had to be killed to stop: orders"),
        (StopReport((), ("orders ended with code 1",), ()), "orders ended with code 1"),
        (StopReport((), (), (4711,)), "processes are left behind: 4711"),
    ],
)
def test_bad_end_of_a_process_is_a_sentence(stopped: StopReport, sentence: str) -> None:
    assert found(GOOD, stopped) == [sentence]


def test_percentiles_are_values_that_occurred() -> None:
    assert [percentile([1, 2, 3, 4], percent) for percent in (50, 75, 99, 100)] == [2, 3, 4, 4]
    assert percentile([7], 1) == 7
    assert percentile([], 50) == 0

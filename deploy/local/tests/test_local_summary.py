"""What a demonstration came to, and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hourglass_invariants.checking import Check, CheckResult, Kind, Violation
from hourglass_local.buyers import Deed
from hourglass_local.cluster import StopReport
from hourglass_local.pair import PairLogs
from hourglass_local.plan import Pays
from hourglass_local.summary import Lateness, Shopped, percentile, problems, summarize
from hourglass_local.testing import BEFORE, GOOD, attempt, books, closed, payment, pending

STOPPED = StopReport((), (), ())
TWICE = attempt(Pays.TWICE, GOOD.payments["pay-a"], replayed=True)
LOST_RACE = attempt(Pays.AT_EXPIRY, GOOD.payments["pay-c"])
SAME_LOGS = PairLogs("1.2", 4_096, 4_096, 4_096, 4_096, in_sync=True)
ENDINGS = {deed: {"a"} for deed in Deed} | {Deed.CANCELLED: {"b"}}
HOLDS = Check("ledger_balances", Kind.ALWAYS, "Debits are credits.", "docs/reference/faults.md#application", "SELECT 1")
SHOPPED = Shopped(
    3,
    GOOD.orders.keys(),
    [TWICE, LOST_RACE],
    {"b"},
    ENDINGS,
    BEFORE,
    GOOD,
    [CheckResult(HOLDS, [])],
    800,
    SAME_LOGS,
)


def found(result: Shopped, stopped: StopReport = STOPPED) -> list[str]:
    return problems(summarize(result, [], stopped, 1.0), result, stopped)


def test_good_run_has_no_problem() -> None:
    summary = summarize(SHOPPED, [], STOPPED, 16.04)
    assert found(SHOPPED) == []
    assert (summary.orders_placed, summary.paid, summary.closed, summary.pending) == (3, 1, 2, 0)
    assert (summary.refunded, summary.raced, summary.paid_twice_same_key) == (1, 1, 1)
    assert (summary.expired, summary.cancelled_by_buyers, summary.cancelled_by_seller) == (1, 1, 1)
    assert (summary.shipped, summary.declined, summary.partly_refunded) == (1, 0, 0)
    assert (summary.invariants_checked, summary.invariants_violated) == (1, 0)
    assert (summary.stock_before, summary.stock_after) == (50, 48)
    assert summary.stock_conserved
    assert summary.money_conserved
    assert summary.close_lateness_ms == Lateness(20, 20, 20)
    assert summary.duration_s == 16.0
    assert (summary.log_bytes, summary.replica_log_bytes, summary.logs_identical) == (4_096, 4_096, True)
    assert json.loads(summary.to_json())["close_lateness_ms"] == {"p50": 20, "p99": 20, "max": 20}


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (replace(SHOPPED, orders_wanted=4), "4 orders were wanted and the shop has 3"),
        (replace(SHOPPED, placed=["a", "z"]), "1 orders were answered with 201 and are not there: z"),
        (
            replace(SHOPPED, attempts=[TWICE, LOST_RACE, attempt(Pays.SOON, payment("x", "a"))]),
            "1 payments were answered with 201 and are not there: x",
        ),
        (replace(SHOPPED, attempts=[TWICE]), "no payment raced against the closing of its order"),
        (replace(SHOPPED, attempts=[LOST_RACE]), "no order was paid twice with the same key"),
        (
            replace(SHOPPED, attempts=[TWICE, replace(TWICE, replayed=False), LOST_RACE]),
            "2 orders were paid twice with the same key, and only 1 second requests were answered with the first"
            " payment",
        ),
        (
            replace(SHOPPED, products_before={}),
            "the stock of G1-first does not add up: (on sale, reserved, sold) has to be None and is (48, 0, 2)",
        ),
        (replace(SHOPPED, cancelled=[]), "no order was cancelled by its buyer"),
        (
            replace(SHOPPED, invariants=[CheckResult(HOLDS, [Violation("ledger_balances", "..", {"sum_minor": 5})])]),
            "ledger_balances: sum_minor=5",
        ),
    ],
)
def test_each_broken_promise_is_a_sentence(result: Shopped, sentence: str) -> None:
    assert found(result) == [sentence]


def test_a_demonstration_of_usual_size_shows_every_ending() -> None:
    nobody_confirmed = replace(SHOPPED, endings=ENDINGS | {Deed.CONFIRMED: set()})
    assert found(nobody_confirmed) == []  # three orders cannot show all
    wanted = "20 orders were wanted and the shop has 3"
    assert found(replace(nobody_confirmed, orders_wanted=20)) == [wanted, "no order was confirmed"]


@pytest.mark.parametrize(
    "behind",
    [
        replace(SAME_LOGS, replica_end=4_000),
        replace(SAME_LOGS, replica_durable_end=4_000),
        replace(SAME_LOGS, confirm_offset=4_000),
        replace(SAME_LOGS, in_sync=False),
    ],
)
def test_replica_that_has_not_everything_is_a_sentence(behind: PairLogs) -> None:
    sentence = f"the logs of broker-a and its replica are not the same: {behind}"
    assert found(replace(SHOPPED, logs=behind)) == [sentence]


def test_logs_that_differ_in_a_byte_are_not_the_same() -> None:
    assert not summarize(SHOPPED, [], STOPPED, 1.0, logs_differ_at=17).logs_identical


def test_books_that_do_not_agree_are_sentences() -> None:
    broken = replace(SHOPPED, books=books([closed("a", -1), closed("b"), pending("c")], list(GOOD.payments.values())))
    summary = summarize(broken, [], STOPPED, 1.0)
    assert not summary.money_conserved
    assert not summary.stock_conserved
    assert (summary.pending, summary.closed_early) == (1, 1)
    assert len(found(broken)) >= 4


@pytest.mark.parametrize(
    ("stopped", "sentence"),
    [
        (StopReport(("orders",), (), ()), "had to be killed to stop: orders"),
        (StopReport((), ("orders ended with code 1",), ()), "orders ended with code 1"),
        (StopReport((), (), (4711,)), "processes are left behind: 4711"),
    ],
)
def test_bad_end_of_a_process_is_a_sentence(stopped: StopReport, sentence: str) -> None:
    assert found(SHOPPED, stopped) == [sentence]


def test_percentiles_are_values_that_occurred() -> None:
    assert [percentile([1, 2, 3, 4], percent) for percent in (50, 75, 99, 100)] == [2, 3, 4, 4]
    assert percentile([7], 1) == 7
    assert percentile([], 50) == 0


def test_a_buyer_whose_order_closed_before_the_payment_is_not_expected_to_pay_twice() -> None:
    assert found(replace(SHOPPED, attempts=[TWICE, attempt(Pays.TWICE, None), LOST_RACE])) == []


def test_a_payment_that_was_declined_before_the_order_closed_was_made_twice() -> None:
    declined = replace(attempt(Pays.TWICE, None, replayed=True), declined=1)
    assert found(replace(SHOPPED, attempts=[TWICE, declined, LOST_RACE])) == []

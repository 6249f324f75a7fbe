"""Bronze to gold: what the shop told, in whatever order, version and number of repeats, as tables (mechanism Y6).

One file, because it wants a Java machine; the rows of most tests are made and read together, in few jobs of Spark.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from analytics_bad_bodies import BAD_BODIES, GOOD
from analytics_rows import Row, by, collected, lines_of, ms, naive, types
from analytics_running_shop import STATUSES, RunningShop
from analytics_stories import DAY_MS, HOUR_MS, tell_stories, tell_two_days, whole_history
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics.events import EVENTS, REJECTS, events, read_bodies, rejects
from analytics.jobs.bronze import BRONZE, bronze, start_of, unique
from analytics.jobs.gold import GOLD_TABLES, GoldInputs, order_totals, stock_turnover
from analytics.jobs.gold_durations import SHARES, class_from_ms, class_to_ms, quantiles
from analytics.jobs.silver import ORDERS, PAYMENTS, TIMER_TOPIC, TIMERS, orders, payments, timers
from analytics.testing import START_MS, BronzeRows, at, bronze_dataframe
from mq_broker.core.delays import Lateness
from orders.testing import running_orders
from osenv import SimClock
from payments.testing import running_payments
from servicekit.testing import RecordingPublisher
from servicekit.testing.databases import NewDatabaseUrl

pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(600)]

Gold = dict[str, list[tuple[Any, ...]]]  # the rows of each gold table


@dataclass(frozen=True, slots=True)
class Silver:
    """What the small stories became."""

    orders: dict[str, Row]
    payments: dict[str, Row]


@pytest.fixture(scope="module")
def silver(spark: SparkSession) -> Iterator[Silver]:
    told = BronzeRows()
    tell_stories(told)
    table = orders(events(read_bodies(told.dataframe(spark)))).cache()
    yield Silver(by("order_id", collected(table)), by("payment_id", collected(payments(table))))
    table.unpersist()


def test_an_order_that_was_paid_before_its_created_event_arrived_is_like_any_other(silver: Silver) -> None:
    order = silver.orders["paid-before-created"]
    assert (order["status"], order["payment_id"], order["total_minor"]) == ("AWAITING_SHIPMENT", "p-early", 1000)
    assert (order["created_at"], order["paid_at"]) == (naive(START_MS), naive(START_MS + 5))


def test_an_event_told_twice_counts_once(silver: Silver) -> None:
    order = silver.orders["twice"]
    assert (order["captured_minor"], len(order["captures"]), order["events"]) == (1000, 1, 3)
    assert order["last_stored_at"] == naive(START_MS + DAY_MS)
    assert order["day"] == at(START_MS).date()


def test_lines_stay_as_they_were_ordered(silver: Silver) -> None:
    lines = [tuple(line.values()) for line in silver.orders["of-two-lines"]["lines"]]
    assert lines == [("tea", 2, 500), ("cup", 1, 300), ("tea", 1, 450)]


def test_an_order_of_which_only_payments_spoke_has_no_status(silver: Silver) -> None:
    assert silver.orders["only-captured"]["status"] is None
    assert silver.orders["only-captured"]["captured_minor"] == 1000
    asked = silver.orders["only-asked-back"]
    assert (asked["status"], asked["captures"], asked["day"]) == (None, [], at(START_MS + DAY_MS).date())
    assert silver.payments["p-asked"]["status"] is None


def test_a_paid_event_that_is_missing_is_known_from_the_capture_and_what_followed(silver: Silver) -> None:
    order = silver.orders["paid-is-missing"]
    assert (order["status"], order["payment_id"]) == ("SHIPPED", "p-unheard")
    assert order["paid_at"] == naive(START_MS + 77)


def test_both_captures_of_an_order_are_kept_and_one_pays_for_it(silver: Silver) -> None:
    order = silver.orders["double-capture"]
    assert [capture["payment_id"] for capture in order["captures"]] == ["p-1", "p-2"]
    assert order["captured_minor"] == 2000
    assert {name: silver.payments[name]["pays_order"] for name in ("p-1", "p-2")} == {"p-1": False, "p-2": True}


def test_a_body_without_version_and_without_members_that_came_later_is_read(silver: Silver) -> None:
    order = silver.orders["old"]
    assert (order["status"], order["total_minor"]) == ("CLOSED", 1000)
    assert [order[name] for name in ("currency", "buyer_id", "close_reason", "payment_id")] == [None] * 4


def test_a_newer_version_is_read_for_what_it_still_has(silver: Silver) -> None:
    order = silver.orders["new"]
    assert (order["status"], order["payment_id"], order["lines"][0]["product_id"]) == (
        "AWAITING_SHIPMENT",
        "p-new",
        "tea",
    )


def test_of_two_wordings_the_newest_version_counts_and_then_the_earliest(silver: Silver) -> None:
    order = silver.orders["reworded"]
    assert (order["created_at"], order["buyer_id"]) == (naive(START_MS + 9), "buyer-2")
    assert [capture["currency"] for capture in order["captures"]] == ["EUR"]


@pytest.mark.mechanism("Y6")
def test_any_order_and_any_repeats_of_the_events_give_the_same_row(spark: SparkSession) -> None:
    rng = random.Random(11)
    told = BronzeRows()
    for case in range(40):
        history = whole_history(f"case-{case:02}")
        history.rows += rng.choices(history.rows, k=case % 5)  # read twice, or told again at once
        rng.shuffle(history.rows)
        told.rows += history.rows
    rows = collected(orders(events(read_bodies(told.dataframe(spark)))))
    assert len(rows) == 40
    first = rows[0] | {"order_id": ""}
    assert all(row | {"order_id": ""} == first for row in rows)
    assert (first["status"], first["events"], first["refunded_minor"]) == ("CLOSED", 9, 1000)


def test_what_cannot_be_read_is_rejected_with_the_reason_and_nothing_is_lost(spark: SparkSession) -> None:
    told = BronzeRows()
    for tag, body, _ in BAD_BODIES:
        told.tell("order-events", tag, body, key="o", stored_ms=START_MS)
    odd = GOOD | {"reason": '}{ "order_id": 5', "buyer_id": None, "later": {"order_id": 5}}
    good = [
        told.tell("order-events", "created", json.dumps(body).encode() + b" \n", key="o", stored_ms=START_MS)
        for body in (GOOD, odd)
    ]
    read = read_bodies(told.dataframe(spark)).cache()
    rejected = sorted(collected(rejects(read)), key=lambda row: row["queue_offset"])
    assert [(row["kind"], row["body"] and bytes(row["body"]), row["problem"]) for row in rejected] == BAD_BODIES
    assert sorted(row["queue_offset"] for row in collected(events(read))) == [row["queueOffset"] for row in good]


ORDER_COLUMNS = ("order_id", "buyer_id", "currency", "total_minor", "status", "payment_id")
ORDER_TIMES = ("created_at", "expires_at", "paid_at", "shipped_at", "completed_at", "closed_at")
PAYMENT_COLUMNS = ("payment_id", "order_id", "status", "amount_minor", "currency", "refunded_minor")


@pytest.mark.mechanism("Y6")
async def test_silver_and_gold_say_what_the_databases_of_orders_and_payments_say(
    spark: SparkSession, new_database_url: NewDatabaseUrl
) -> None:
    queue, clock = RecordingPublisher(), SimClock()
    async with (
        running_orders(new_database_url("orders"), publisher=queue, clock=clock) as its_orders,
        running_payments(new_database_url("payments"), queue=queue, clock=clock) as its_payments,
    ):
        shop = RunningShop(its_orders, its_payments, queue)
        await shop.live()
        stock = await its_orders.product()
        order_books = [await its_orders.order(row["key"]) for row in shop.told.rows if row["tag"] == "created"]
        payment_books = await its_payments.payments()
    for row in random.Random(3).choices(shop.told.rows, k=20):
        shop.told.again(row, stored_ms=clock.wall_ms())
    random.Random(5).shuffle(shop.told.rows)
    read = read_bodies(shop.told.dataframe(spark))
    table = orders(events(read)).cache()

    found = sorted(
        [*(row[name] for name in ORDER_COLUMNS), *(ms(row[name]) for name in ORDER_TIMES), lines_of(row)]
        for row in collected(table)
    )
    assert found == sorted(
        [
            *(getattr(order, name) for name in ORDER_COLUMNS),
            *(getattr(order, f"{name}_ms") for name in ORDER_TIMES),
            [(line.product_id, line.quantity, line.unit_price_minor) for line in order.lines],
        ]
        for order in order_books
    )
    assert sorted(order.status for order in order_books) == STATUSES
    found = sorted([row[name] for name in PAYMENT_COLUMNS] for row in collected(payments(table)))
    assert found == sorted([getattr(payment, name) for name in PAYMENT_COLUMNS] for payment in payment_books)

    totals = collected(order_totals(table))
    paid = [order for order in order_books if order.payment_id is not None]
    assert [sum(row[name] for row in totals) for name in ("orders", "closed", "paid", "revenue_minor")] == [
        len(order_books),
        sum(order.status == "CLOSED" for order in order_books),
        len(paid),
        sum(order.total_minor for order in paid),
    ]
    assert sum(row["kept_minor"] for row in totals) == sum(
        payment.amount_minor - payment.refunded_minor for payment in payment_books
    )
    units = collected(stock_turnover(table))
    assert sum(row["units_waiting"] for row in units) == stock.reserved
    assert sum(row["units_kept"] for row in units) == stock.sold


def test_a_timer_is_as_late_as_the_broker_counts_it(spark: SparkSession) -> None:
    told, other = BronzeRows(), BronzeRows("broker-b")
    told.timer("by-level", due_ms=START_MS, delivered_ms=START_MS + 33)
    waiting, delivered = told.timer("other-level", due_ms=START_MS + 7, delivered_ms=START_MS + 7, level=1)
    told.rows += [waiting, delivered]  # read twice
    waiting, delivered = told.timer("moved", due_ms=START_MS, delivered_ms=START_MS + 1)
    waiting |= {"topic": TIMER_TOPIC, "queueId": 0}
    delivered["properties"] = {"__SCHEDULE_POSITION": f"-1:{waiting['queueOffset']}"}
    told.timer("of-unknown-due", due_ms=START_MS, delivered_ms=START_MS)[0]["topic"] = "lost"
    _, at_once = told.timer("at-once", due_ms=START_MS, delivered_ms=START_MS)
    at_once["properties"] = {}
    _, garbled = told.timer("garbled", due_ms=START_MS, delivered_ms=START_MS)
    garbled["properties"] = {"__SCHEDULE_POSITION": "sixteen"}
    other.timer("of-another-broker", due_ms=START_MS, delivered_ms=START_MS + 500)
    rows = by("order_id", collected(timers(bronze_dataframe(spark, told.rows + other.rows))))
    assert {name: (row["level"], row["lateness_ms"]) for name, row in rows.items()} == {
        "by-level": (16, 33),
        "other-level": (1, 0),
        "moved": (-1, 1),
        "of-unknown-due": (16, None),
        "at-once": (None, None),
        "garbled": (None, None),
        "of-another-broker": (16, 500),
    }
    assert rows["by-level"]["due_at"] == naive(START_MS)


def test_percentiles_are_exact_and_in_the_brokers_classes_they_are_the_brokers(spark: SparkSession) -> None:
    rng = random.Random(7)
    values = {level: [int(rng.lognormvariate(3, 2)) for _ in range(100 * level + 1)] for level in (1, 2, 5)}
    rows = [(level, value) for level, some in values.items() for value in some] + [(1, None), (9, None)]
    table = quantiles(spark.createDataFrame(rows, "level int, late_ms long"), ["level"], "late_ms")
    rounded = {f"{name}_up": F.least(class_to_ms(name), "max_ms") for name, _ in SHARES}
    found = by("level", collected(table.withColumns(rounded).withColumn("class_from_ms", class_from_ms("max_ms"))))
    assert set(found) == set(values)
    for level, some in values.items():
        some.sort()
        broker = Lateness()
        broker.add(some)
        for name, share in SHARES:
            assert found[level][name] == some[math.ceil(share * len(some)) - 1]
            assert found[level][f"{name}_up"] == broker.quantile_ms(share)
        assert (found[level]["max_ms"], found[level]["count"], found[level]["sum_ms"]) == (
            some[-1],
            len(some),
            sum(some),
        )
        assert found[level]["class_from_ms"] <= some[-1]


@pytest.fixture(scope="module")
def gold(spark: SparkSession) -> Gold:
    """The gold tables of six orders of two days, as sorted rows; a day is 1 or 2."""
    told = BronzeRows()
    tell_two_days(told)
    read = read_bodies(told.dataframe(spark)).cache()
    table = orders(events(read)).cache()
    inputs = GoldInputs(read, table, timers(told.dataframe(spark)).cache())
    first = at(START_MS).date()
    made = {}
    for one in GOLD_TABLES:
        rows = [tuple(row.values()) for row in collected(one.make(inputs))]
        plain = [tuple((value - first).days + 1 if type(value) is date else value for value in row) for row in rows]
        made[one.name] = sorted(plain, key=repr)
    return made


def test_order_totals_count_each_order_in_its_status_and_unknown_ones_apart(gold: Gold) -> None:
    # orders; pending, awaiting, shipped, completed, closed; expired, cancelled, by seller; paid, unknown;
    # revenue, captured, refunded, kept
    assert gold["order_totals"] == [
        (1, "CNY", 3, 0, 0, 0, 1, 2, 1, 0, 1, 2, 0, 2000, 2000, 500, 1500),
        (2, "CNY", 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 700, 0, 700),
        (2, "EUR", 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (2, None, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0),
    ]


def test_amounts_of_two_currencies_are_never_added(spark: SparkSession) -> None:
    told = BronzeRows()
    told.created("o-1")
    told.succeeded("o-1", "p-1", 1000)
    told.succeeded("o-1", "p-2", 700, currency="EUR")
    told.refunded("o-1", "p-2", "r-2", 700, currency="EUR")
    told.succeeded("unknown", "p-3", 50, currency="JPY")
    told.succeeded("unknown", "p-4", 40, currency="EUR")
    table = orders(events(read_bodies(told.dataframe(spark))))
    totals = {row["currency"]: row for row in collected(order_totals(table))}
    moved = {name: (row["captured_minor"], row["refunded_minor"]) for name, row in totals.items()}
    assert moved == {"CNY": (1000, 0), "EUR": (740, 700), "JPY": (50, 0), None: (0, 0)}
    assert [
        (name, row["orders"], row["unknown"]) for name, row in totals.items() if row["orders"] or row["unknown"]
    ] in (
        [("CNY", 1, 0), (None, 0, 1)],
        [(None, 0, 1), ("CNY", 1, 0)],
    )
    known = by("order_id", collected(table))["o-1"]
    assert (known["captured_minor"], known["refunded_minor"]) == (1000, 0)


def test_the_funnel_counts_how_far_the_orders_of_a_day_came(gold: Gold) -> None:
    assert gold["funnel"] == [
        (1, 1, "created", 3, 1.0, 1.0),
        (1, 2, "paid", 2, 2 / 3, 2 / 3),
        (1, 3, "shipped", 1, 1 / 3, 0.5),
        (1, 4, "completed", 1, 1 / 3, 1.0),
        (2, 1, "created", 2, 1.0, 1.0),
        (2, 2, "paid", 0, 0.0, 0.0),
        (2, 3, "shipped", 0, 0.0, None),
        (2, 4, "completed", 0, 0.0, None),
    ]


def test_revenue_counts_in_the_minute_of_paying_and_an_order_once_to_each_product(gold: Gold) -> None:
    minute = naive(START_MS + 60_000)
    assert gold["revenue_per_minute"] == [(1, minute, "cup", "CNY", 1, 1, 300), (1, minute, "tea", "CNY", 2, 4, 1700)]


def test_time_to_pay_is_measured_from_event_to_event(gold: Gold) -> None:
    assert gold["time_to_pay"] == [(1, 2, 61_000, 61_499, 61_499, 61_499, 61_499, 122_499)]


def test_close_lateness_is_measured_for_orders_and_for_timers(gold: Gold) -> None:
    assert gold["close_lateness"] == [
        ("order-closed", None, 1, 40, 40, 40, 40, 40, 40),
        ("timer-delivered", 16, 1, 33, 33, 33, 33, 33, 33),
    ]
    assert gold["lateness_classes"] == [(1, "order-closed", None, 40, 43, 1), (1, "timer-delivered", 16, 32, 35, 1)]


def test_every_unit_that_was_ordered_is_sold_released_or_waiting(gold: Gold) -> None:
    # reserved = sold + released + waiting; taken back, kept
    assert gold["stock_turnover"] == [
        (1, "cup", 1, 1, 0, 0, 0, 1),
        (1, "tea", 7, 4, 3, 0, 1, 3),
        (2, "cup", 1, 0, 0, 1, 0, 0),
        (2, "tea", 1, 0, 1, 0, 0, 0),
    ]


def test_abandoned_is_what_was_closed_unpaid_by_the_hour_and_day_of_its_creation(gold: Gold) -> None:
    second_day = naive(START_MS + DAY_MS)
    assert gold["abandoned_rate"] == [
        (1, "day", naive(START_MS), 3, 2, 1, 0, 1 / 3),
        (1, "hour", naive(START_MS), 2, 2, 0, 0, 0.0),
        (1, "hour", naive(START_MS + 2 * HOUR_MS), 1, 0, 1, 0, 1.0),
        (2, "day", second_day, 2, 0, 1, 1, 0.5),
        (2, "hour", second_day, 2, 0, 1, 1, 0.5),
    ]


def test_newer_versions_and_rejects_are_counted(gold: Gold) -> None:
    counts = gold["event_counts"]
    assert [row for row in counts if row[4] != "read"] == [
        (1, "order-events", "moved", None, "rejected", 1),
        (2, "order-events", "created", 2, "newer", 1),
    ]
    assert sum(row[5] for row in counts) == 18


def test_each_job_makes_the_columns_of_its_schema(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], BRONZE)
    read = read_bodies(nothing)
    table = orders(events(read))
    made = {
        "bronze": (bronze(nothing.drop("day")), BRONZE),
        "events": (events(read), EVENTS),
        "rejects": (rejects(read), REJECTS),
        "orders": (table, ORDERS),
        "payments": (payments(table), PAYMENTS),
        "timers": (timers(nothing), TIMERS),
    } | {one.name: (one.make(GoldInputs(read, table, timers(nothing))), one.schema) for one in GOLD_TABLES}
    assert {name: types(frame.schema) for name, (frame, _) in made.items()} == {
        name: types(schema) for name, (_, schema) in made.items()
    }


def test_silver_orders_read_each_body_once_and_shuffle_once(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    orders(events(read_bodies(spark.createDataFrame([], BRONZE)))).explain()
    plan = capsys.readouterr().out
    assert (plan.count("from_json("), plan.count("Exchange"), plan.count("Join")) == (1, 1, 0)


def test_days_and_hours_are_utc_and_bronze_is_unique_by_place(spark: SparkSession) -> None:
    told = BronzeRows()
    told.created("o", at_ms=START_MS - 1)
    told.rows *= 2
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")  # half an hour beside the others
    try:
        rows = unique(bronze(told.dataframe(spark).drop("day")))
        hour_ms = F.unix_millis(start_of("storeTimestamp", HOUR_MS))
        assert rows.select("day", hour_ms).collect() == [(at(START_MS - 1).date(), START_MS - HOUR_MS)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

"""Reconciliation: each kind of fault is found, what is under way is not, and what is well is never found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from servicekit.message import OutgoingMessage

pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(600)]

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
CREATED, EXPIRES = NOON, NOON + timedelta(minutes=30)
NEXT_DAY = NOON + timedelta(days=1)
LINES = [("seat", 2, 400), ("plant", 1, 200)]  # 1,000 in all


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def capture(payment_id: str = "p1", amount: int = 1000, currency: str = "CNY", minutes: float = 5) -> tuple[Any, ...]:
    return (payment_id, amount, currency, at(minutes))


def refund(refund_id: str, amount: int = 1000, payment_id: str = "p1", reason: str = "order-closed") -> tuple[Any, ...]:
    return (refund_id, payment_id, amount, "CNY", reason, at(32))


def request(payment_id: str = "p1", amount: int = 1000, reason: str = "order-closed") -> tuple[Any, ...]:
    return (payment_id, amount, "CNY", reason)


def pending(order_id: str, **others: Any) -> dict[str, Any]:
    row = {
        "order_id": order_id,
        "buyer_id": "b1",
        "currency": "CNY",
        "total_minor": 1000,
        "lines": LINES,
        "status": "PENDING_PAYMENT",
        "created_at": CREATED,
        "expires_at": EXPIRES,
        "captures": [],
        "refunds": [],
        "refund_requests": [],
        "last_stored_at": at(40),
        "day": CREATED.date(),
    }
    return row | others


def paid(order_id: str, **others: Any) -> dict[str, Any]:
    states = {"status": "AWAITING_SHIPMENT", "paid_at": at(5), "payment_id": "p1", "captures": [capture()]}
    return pending(order_id, **states) | others


def closed(order_id: str, **others: Any) -> dict[str, Any]:
    return pending(order_id, status="CLOSED", closed_at=EXPIRES, close_reason="expired") | others


def unknown(order_id: str, **others: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("status", "created_at", "expires_at", "total_minor", "currency", "lines", "buyer_id"))
    return pending(order_id) | empty | others


def silver(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    from analytics.jobs.silver import ORDERS

    return spark.createDataFrame([tuple(row.get(name) for name in ORDERS.names) for row in rows], ORDERS)


def found_in(frame: DataFrame) -> set[tuple[Any, ...]]:
    """(kind, order, payment, amount) of each finding, which has to be there once."""
    rows = [(row.kind, row.order_id, row.payment_id, row.amount_minor) for row in frame.collect()]
    assert len(rows) == len(set(rows)), rows
    assert all(row.detail and "?" not in row.detail for row in frame.collect())
    return set(rows)


SOUND = [
    pending("waits", expires_at=NEXT_DAY + timedelta(minutes=1)),
    paid("paid"),
    paid("paid-and-given-back-in-part", refunds=[refund("r1", 300, reason="sorry"), refund("r2", 300, reason="sorry")]),
    paid("paid-and-given-back-whole", refunds=[refund("r1", 1000, reason="sorry")]),
    paid("completed", status="COMPLETED", shipped_at=at(60), completed_at=at(90)),
    closed("expired"),
    closed("cancelled-before-its-time", close_reason="cancelled", closed_at=at(3)),
    closed("paid-late", captures=[capture(minutes=29)], refund_requests=[request()], refunds=[refund("r1")]),
    closed("given-back-by-an-operator", captures=[capture()], refunds=[refund("r1", reason="sorry")]),
    paid(
        "sold-and-cancelled",
        status="CLOSED",
        closed_at=at(9),
        close_reason="seller-cancelled",
        refund_requests=[request(reason="order-cancelled")],
        refunds=[refund("r1", 400, reason="sorry"), refund("r2", 600, reason="order-cancelled")],
    ),
    closed(
        "wrong-amount-rejected",
        captures=[capture(amount=900)],
        refund_requests=[request(amount=900, reason="wrong-amount")],
        refunds=[refund("r1", 900, reason="wrong-amount")],
    ),
    paid(
        "paid-twice-and-given-back",
        captures=[capture("p2", minutes=4), capture()],
        refund_requests=[request("p2", reason="already-paid")],
        refunds=[refund("r1", payment_id="p2", reason="already-paid")],
    ),
    paid("without-its-lines", lines=None),
]

FAULTY = {
    ("paid-not-marked", "p1", 1000): pending("f", captures=[capture()]),
    ("closed-captured-not-refunded", "p1", 1000): closed("f", captures=[capture()]),
    ("closed-captured-not-refunded", "p1", 700): paid(
        "f", status="CLOSED", closed_at=at(9), close_reason="seller-cancelled", refunds=[refund("r", 300)]
    ),
    ("double-capture", "p2", 1000): paid("f", captures=[capture("p2", minutes=4), capture()]),
    ("refund-missing", "p1", 1000): closed("f", captures=[capture()], refund_requests=[request()]),
    ("refund-missing", "p2", 1000): closed("f", refund_requests=[request("p2")]),
    ("refund-twice", "p1", 1000): closed(
        "f", captures=[capture()], refund_requests=[request()], refunds=[refund("r1"), refund("r2")]
    ),
    ("refund-more-than-captured", "p1", 200): paid("f", refunds=[refund("r1", 500), refund("r2", 700)]),
    ("refund-more-than-captured", "p2", 1000): closed("f", refunds=[refund("r1", payment_id="p2")]),
    ("paid-without-capture", "p1", 1000): paid("f", captures=[]),
    ("amount-mismatch", "p1", -1): paid("f", captures=[capture(amount=999)]),
    ("amount-mismatch", "p1", 500): pending("f", captures=[capture(amount=1500)]),
    ("currency-mismatch", "p1", 1000): paid("f", captures=[capture(currency="EUR")]),
    ("currency-mismatch", "p1", 900): pending("f", captures=[capture(amount=900, currency="EUR")]),
    ("never-closed", None, 1000): pending("f"),
    ("closed-early", None, 1000): closed("f", closed_at=EXPIRES - timedelta(milliseconds=1)),
    ("unknown-order", "p1", 1000): unknown("f", captures=[capture()]),
    ("unknown-order", None, None): unknown("f", refunds=[refund("r1")]),
    ("lines-do-not-add-up", None, 1): paid("f", total_minor=1001, captures=[capture(amount=1001)]),
    ("lines-do-not-add-up", None, 1000): paid("f", lines=[]),
    ("terms-missing", None, 1000): pending("f", expires_at=None),
    ("terms-missing", None, None): paid("f", total_minor=None),
    ("told-differently", None, 1000): paid("f", disputed=["total_minor"]),
    ("paid-without-payment", None, 1000): paid("f", payment_id=None, captures=[]),
    ("paid-after-expiry", None, 1000): paid("f", paid_at=at(391), captures=[capture(minutes=391)]),
    ("closed-late", None, 1000): closed("f", closed_at=at(391)),
    ("closed-after-shipping", None, 1000): paid(
        "f",
        status="CLOSED",
        shipped_at=at(6),
        closed_at=at(9),
        close_reason="seller-cancelled",
        refund_requests=[request(reason="order-cancelled")],
        refunds=[refund("r1", reason="order-cancelled")],
    ),
}


@pytest.mark.mechanism("Y7")
def test_each_kind_of_fault_is_found_once_and_nothing_else(spark: SparkSession) -> None:
    from analytics.jobs.reconciliation import reconcile

    rows = {f"order-{number}": row for number, row in enumerate(FAULTY.values())}
    wanted = {
        (kind, order_id, payment_id and f"{payment_id}-{order_id}", amount_minor)
        for order_id, (kind, payment_id, amount_minor) in zip(rows, FAULTY, strict=True)
    }
    told = [*SOUND, *(row | {"order_id": order_id} for order_id, row in rows.items())]
    orders = silver(spark, *(with_own_payments(row) for row in told))
    assert found_in(reconcile(orders, as_of=NEXT_DAY)) == wanted


def test_every_kind_of_the_messages_is_tested() -> None:
    from analytics.jobs.reconciliation_kinds import Kind

    elsewhere = {kind for kind in Kind if kind.startswith(("order-", "payment-", "same-"))}  # books, and two orders
    assert {kind for kind, *_ in FAULTY} == set(Kind) - elsewhere


def test_what_is_under_way_is_found_only_when_its_grace_is_over(spark: SparkSession) -> None:
    from analytics.jobs.reconciliation import reconcile
    from analytics.jobs.reconciliation_kinds import Grace

    rows = {kind: row | {"order_id": kind, "last_stored_at": at(40)} for (kind, *_), row in FAULTY.items()}
    orders = silver(spark, *(with_own_payments(row) for row in rows.values()))
    grace = Grace(answer=timedelta(minutes=5), refund=timedelta(minutes=20), closing=timedelta(minutes=15))
    at_once = {
        "refund-twice", "amount-mismatch", "currency-mismatch", "closed-early", "lines-do-not-add-up", "terms-missing",
        "told-differently", "paid-after-expiry", "closed-late", "closed-after-shipping",
    }  # fmt: skip
    del rows["refund-more-than-captured"], rows["amount-mismatch"], rows["currency-mismatch"]  # judged by more than one
    at_once &= set(rows)

    def kinds(minutes: float) -> set[str]:
        found = reconcile(orders, as_of=at(minutes), grace=grace)
        return {row.kind for row in found.select("kind").distinct().collect()} & set(rows)

    assert kinds(44.9) == at_once
    assert kinds(45) == set(rows) - {"refund-missing"}
    assert kinds(60) == set(rows)


ORDER_COLUMNS = (
    "order_id string, buyer_id string, status string, version bigint, total_minor bigint, currency string,"
    " created_at_ms bigint, expires_at_ms bigint, closed_at_ms bigint, payment_id string, paid_at_ms bigint,"
    " shipped_at_ms bigint, completed_at_ms bigint"
)
PAYMENT_COLUMNS = (
    "payment_id string, order_id string, amount_minor bigint, currency string, status string, created_at_ms bigint,"
    " captured_at_ms bigint, refund_requested_minor bigint, refunded_minor bigint"
)


def wall_ms(at_: datetime | None) -> int | None:
    return None if at_ is None else round(at_.timestamp() * 1000)


def order_row(row: dict[str, Any]) -> dict[str, Any]:
    """What orders' database says of an order that silver knows so."""
    times = ("created_at", "expires_at", "closed_at", "paid_at", "shipped_at", "completed_at")
    members = ("order_id", "buyer_id", "status", "total_minor", "currency", "payment_id")
    return {name: row.get(name) for name in members} | {f"{name}_ms": wall_ms(row.get(name)) for name in times}


def payment_rows(row: dict[str, Any]) -> list[dict[str, Any]]:
    """What payments' database says of an order that silver knows so."""
    return [
        {
            "payment_id": payment_id,
            "order_id": row["order_id"],
            "amount_minor": amount,
            "currency": currency,
            "status": "CAPTURED",
            "created_at_ms": wall_ms(captured_at),
            "captured_at_ms": wall_ms(captured_at),
            "refund_requested_minor": (returned := sum(one[2] for one in row["refunds"] if one[1] == payment_id)),
            "refunded_minor": returned,
        }
        for payment_id, amount, currency, captured_at in row["captures"]
    ]


def books(
    spark: SparkSession, order_rows: list[dict[str, Any]], payments: list[dict[str, Any]]
) -> tuple[DataFrame, DataFrame]:
    return (
        spark.createDataFrame(order_rows, ORDER_COLUMNS, verifySchema=False),
        spark.createDataFrame(payments, PAYMENT_COLUMNS, verifySchema=False),
    )


def with_own_payments(row: dict[str, Any]) -> dict[str, Any]:
    """The row with payment and refund ids that no other order has."""
    order_id = row["order_id"]

    def own(array: str, ids: int) -> list[tuple[Any, ...]]:
        return [(*(f"{id_}-{order_id}" for id_ in one[:ids]), *one[ids:]) for one in row[array]]

    arrays = {
        "captures": own("captures", 1),
        "refunds": own("refunds", 2),
        "refund_requests": own("refund_requests", 1),
    }
    paid_by = row.get("payment_id")
    return row | arrays | {"payment_id": paid_by and f"{paid_by}-{order_id}"}


def test_books_that_agree_with_the_messages_are_no_finding(spark: SparkSession) -> None:
    from analytics.jobs.reconciliation import reconcile_books

    rows = [with_own_payments(row) for row in SOUND if row["order_id"] != "waits"]
    payments = [payment for row in rows for payment in payment_rows(row)]
    # A payment that was declined took nothing, and no message tells of it.
    payments.append(payments[0] | {"payment_id": "declined", "status": "DECLINED", "captured_at_ms": None})
    order_rows, payment_rows_ = books(spark, [order_row(row) for row in rows], payments)
    assert found_in(reconcile_books(silver(spark, *rows), order_rows, payment_rows_)) == set()


def test_books_that_differ_are_found_on_the_side_where_they_do(spark: SparkSession) -> None:
    from analytics.jobs.reconciliation import reconcile_books

    heard = {name: with_own_payments(paid(name)) for name in ("same", "unbooked", "later", "dearer", "unrefunded")}
    heard["unheard-refund"] = with_own_payments(closed("unheard-refund", captures=[capture()]))
    booked = {name: order_row(row) for name, row in heard.items() if name != "unbooked"}
    booked["unheard"] = order_row(pending("unheard"))
    booked["later"] |= {"paid_at_ms": booked["later"]["paid_at_ms"] + 1}
    taken = {name: payment_rows(row)[0] for name, row in heard.items() if name != "unbooked"}
    taken["dearer"] |= {"amount_minor": 1001}
    taken["unrefunded"] |= {"refund_requested_minor": 400, "refunded_minor": 0}
    taken["unheard-refund"] |= {"refund_requested_minor": 1000, "refunded_minor": 1000}
    taken["unheard"] = taken["same"] | {"payment_id": "p1-unheard", "order_id": "unheard"}
    order_rows, payments = books(spark, list(booked.values()), list(taken.values()))
    orders = silver(spark, *heard.values())

    def found(**as_of: Any) -> set[tuple[str, str, str]]:
        rows = reconcile_books(orders, order_rows, payments, **as_of).collect()
        return {(row.kind, row.order_id, row.found_in) for row in rows}

    at_once = {
        ("order-only-in-messages", "unbooked", "messages and orders"),
        ("payment-only-in-messages", "unbooked", "messages and payments"),
        ("order-differs", "later", "messages and orders"),
        ("payment-differs", "dearer", "messages and payments"),
        ("amount-mismatch", "dearer", "orders and payments"),
        ("order-only-in-books", "unheard", "messages and orders"),
        ("payment-only-in-books", "unheard", "messages and payments"),
        ("paid-not-marked", "unheard", "orders and payments"),
    }
    at_rest = {
        ("refund-missing", "unrefunded", "orders and payments"),
        ("payment-differs", "unheard-refund", "messages and payments"),
    }
    assert found() == at_once | at_rest
    assert found(as_of=NEXT_DAY) == at_once
    assert found(as_of=at(9)) == {("amount-mismatch", "dearer", "orders and payments")}


@pytest.fixture(scope="module")
def generated(spark: SparkSession) -> Iterator[tuple[DataFrame, DataFrame]]:
    """Bronze and the truth: two faults of each kind among 300 orders, much that is late, twice, and on two brokers."""
    from analytics.generator.generate import generate
    from analytics.generator.generation import Generation
    from analytics.generator.stories import FAULTS

    wanted = Generation(300, faults=dict.fromkeys(FAULTS, 2), days=2, brokers=2)
    made = generate(spark, replace(wanted, late_share=0.2, repeated_share=0.2, read_twice_share=0.1))
    bronze = made.bronze.cache()
    yield bronze, made.truth
    bronze.unpersist()


def test_every_planted_fault_is_found_in_generated_histories_and_nothing_else(
    generated: tuple[DataFrame, DataFrame],
) -> None:
    from analytics.events import events, read_bodies, rejects
    from analytics.generator.generation import Generation
    from analytics.jobs.reconciliation import reconcile
    from analytics.jobs.silver import orders

    bronze, truth = generated
    read = read_bodies(bronze)
    findings = reconcile(orders(events(read)), as_of=Generation(300, days=2).rest_at)
    members = ("kind", "order_id", "payment_id")
    planted = sorted(truth.select(*members).collect(), key=str)
    assert len(planted) == 2 * len({row.kind for row in planted}) == 38
    assert sorted(findings.select(*members).collect(), key=str) == planted
    assert rejects(read).isEmpty()


def test_generated_messages_stand_in_their_queues_without_a_gap(generated: tuple[DataFrame, DataFrame]) -> None:
    from pyspark.sql import functions as F

    queues = (
        generated[0]
        .groupBy("topic", "broker", "queueId")
        .agg(
            F.min("queueOffset").alias("first"),
            F.max("queueOffset").alias("last"),
            F.countDistinct("queueOffset").alias("places"),
            F.count("*").alias("rows"),
        )
    )
    rows = queues.collect()
    assert all(row["first"] == 0 and row["last"] + 1 == row.places for row in rows)
    assert len(rows) == 2 * (3 * 4 + 1)  # two brokers; four queues of three topics, and one of the waiting timers
    assert sum(row.rows for row in rows) > sum(row.places for row in rows)  # some are in bronze twice


def test_generated_timers_name_the_records_that_waited(generated: tuple[DataFrame, DataFrame]) -> None:
    from pyspark.sql import functions as F

    bronze = generated[0].dropDuplicates(["topic", "broker", "queueId", "queueOffset"])
    waiting = bronze.where("topic = 'SCHEDULE_TOPIC_XXXX'").select(
        "key",
        "broker",
        F.concat((F.col("queueId") + 1).cast("string"), F.lit(":"), "queueOffset").alias("position"),
        F.timestamp_millis(F.col("properties.__DUE_TIMESTAMP").cast("bigint")).alias("due_at"),
    )
    delivered = bronze.where("topic = 'order-timeouts'").select(
        "key", "broker", F.col("properties.__SCHEDULE_POSITION").alias("position"), "storeTimestamp"
    )
    both = waiting.join(delivered, ["key", "broker", "position"])
    counts = [frame.count() for frame in (waiting, delivered, both, both.where("storeTimestamp >= due_at"))]
    assert counts == [298] * 4  # the two orders that were never created have none


def test_generated_bodies_are_what_the_services_write(generated: tuple[DataFrame, DataFrame]) -> None:
    told = generated[0].where("topic <> 'SCHEDULE_TOPIC_XXXX'").dropDuplicates(["topic", "tag"]).collect()
    assert len(told) == 9
    for row in told:
        assert bytes(row.body) == services_body(row.tag, json.loads(row.body)), row.tag
        assert list(row["keys"]) == [row.key] == [json.loads(row.body)["order_id"]]


def services_body(tag: str, members: dict[str, Any]) -> bytes:
    """The body that the service makes of such an order or payment."""
    from orders.service import events as of_orders
    from payments.service import events as of_payments

    # What the two modules look at, whatever carries it.
    lines = [SimpleNamespace(**item) for item in members.get("items", [])]
    told: Any = SimpleNamespace(**members, lines=lines)
    told.payment, told.captured_at_ms = told, members.get("paid_at_ms")
    at_ms = members.get("closed_at_ms", members.get("completed_at_ms"))
    reason = SimpleNamespace(value=members.get("reason"))
    change: Any = SimpleNamespace(at_ms=at_ms, reason=reason)
    request: Any = SimpleNamespace(payment=told, reason=reason)
    deadline = of_orders.OrderDeadline(members["order_id"], members.get("expires_at_ms", 0))
    makers: dict[str, Callable[[], OutgoingMessage]] = {
        "created": lambda: of_orders.created(told),
        "paid": lambda: of_orders.paid(told),
        "shipped": lambda: of_orders.shipped(told),
        "completed": lambda: of_orders.completed(told, change),
        "closed": lambda: of_orders.closed(told, change),
        "refund-requested": lambda: of_orders.refund_requested(request),
        "expire": lambda: of_orders.timeout(deadline, 16),
        "succeeded": lambda: of_payments.succeeded(told),
        "refunded": lambda: of_payments.refunded(told, told),
    }
    return makers[tag]().body

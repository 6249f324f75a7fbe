"""One order gives one connected trace: what real processes have told a real receiver of OTLP, against the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from order_lives import (
    CHECKED_ORDER,
    CLOSED_ORDER,
    GIVEN_UP_ORDER,
    REFUNDED_ORDER,
    SHIPPED_ORDER,
)
from trace_checks import Life, check_life, disconnections
from traced_shop import LATE_MS, WINDOW_S, Told, tell

from telemetry import names
from telemetry.trace_tree import ReceivedSpan

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

LIVES = {
    "closed": CLOSED_ORDER,
    "shipped": SHIPPED_ORDER,
    "refunded": REFUNDED_ORDER,
    "checked": CHECKED_ORDER,
    "given up": GIVEN_UP_ORDER,
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return asyncio.run(tell(tmp_path_factory.mktemp("shop")))


def one(spans: list[ReceivedSpan], name: str, fits: Callable[[ReceivedSpan], bool] = lambda _: True) -> ReceivedSpan:
    (found,) = [span for span in spans if span.name == name and fits(span)]
    return found


@pytest.mark.mechanism("U6")
@pytest.mark.parametrize(("case", "life"), LIVES.items())
def test_an_order_gives_one_connected_trace_with_all_spans_of_its_life(told: Told, case: str, life: Life) -> None:
    check_life(told.trace(case), life)


@pytest.mark.parametrize("case", LIVES)
def test_links_lead_to_spans_that_were_told(told: Told, case: str) -> None:
    spans = told.trace(case)
    assert disconnections(spans, [span for span in told.spans if span.trace_id != told.trace_ids[case]]) == []


@pytest.mark.parametrize("case", LIVES)
def test_each_row_of_the_history_names_the_trace_of_the_order(told: Told, case: str) -> None:
    assert {row["trace_id"] for row in told.histories[case]} == {told.trace_ids[case]}
    assert len({told.trace_ids[other] for other in LIVES}) == len(LIVES)


@pytest.mark.mechanism("U6")
def test_requests_of_people_keep_traces_of_their_own_and_are_linked(told: Told) -> None:
    paying = one(told.trace("shipped"), "settle payment")
    shipping = one(told.trace("shipped"), "ship order")
    known = {(span.trace_id, span.span_id): span for span in told.spans}
    asked = [known[link].name for span in (paying, shipping) for link in span.links]
    assert asked == ["POST /payments", "POST /orders/{order_id}/ship"]
    assert paying.attributes[names.ORDER_ID] == shipping.attributes[names.ORDER_ID]


@pytest.mark.parametrize("case", LIVES)
def test_the_first_span_says_which_order_it_is(told: Told, case: str) -> None:
    assert one(told.trace(case), "POST /orders").attributes[names.ORDER_ID] == told.order_ids[case]


def test_the_wait_of_an_order_lasts_as_long_as_its_time_to_pay(told: Told) -> None:
    wait = one(told.trace("closed"), "wait order-timeouts")
    assert wait.attributes[names.MESSAGE_DELAY_TIME_LEVEL] == 16
    assert wait.duration_ms >= WINDOW_S * 1000 - 1_000  # what the message took to be sent was counted off
    assert float(str(wait.attributes[names.DELAY_LATENESS])) >= 0.0


def test_a_late_webhook_is_sent_in_the_trace_of_its_order(told: Told) -> None:
    spans = told.trace("refunded")
    decided, received = one(spans, "decide charge"), [span for span in spans if span.name == "receive event"]
    assert (received[0].start_ns - decided.end_ns) / 1e6 >= LATE_MS - 1_000


def test_a_check_back_finds_what_the_local_transaction_has_done(told: Told) -> None:
    spans = sorted(told.trace("checked"), key=lambda span: span.start_ns)
    checks = [span for span in spans if span.name == "check order-events"]  # more than one, if the machine is slow
    local = next(span for span in spans if span.name == "transaction order-events")
    assert checks[0].start_ns < local.end_ns < checks[0].end_ns  # asked before the end, and answered after it
    assert {span.attributes[names.TRANSACTION_STATE] for span in checks} == {"COMMIT_MESSAGE"}
    halves = [span for span in spans if span.name == "half order-events"]
    assert [span.attributes[names.TRANSACTION_STATE] for span in halves] == ["committed", "committed"]


def test_an_unreadable_message_is_tried_again_and_given_up_in_the_trace(told: Told) -> None:
    spans = told.trace("given up")
    tries = [span for span in spans if span.name == "process payment-events"]
    assert [span.attributes.get(names.RECONSUME_TIMES, 0) for span in sorted(tries, key=lambda s: s.start_ns)] == [0, 1]
    assert {span.status for span in tries} == {"ERROR"}
    dead = [span for span in spans if span.name.startswith("dead letter")]
    assert {span.service for span in dead} >= {"mq-broker"}


def test_log_lines_of_consumers_have_the_trace(told: Told) -> None:
    lines = [line for line in told.logs["orders"] if line["event"] == "a message cannot be understood"]
    assert {line["trace_id"] for line in lines} == {told.trace_ids["given up"]}


def test_statements_have_their_text_and_no_values(told: Told) -> None:
    texts = [str(span.attributes["db.query.text"]) for span in told.spans if "db.query.text" in span.attributes]
    assert any("INSERT INTO orders" in text for text in texts)
    ids = {row["trace_id"] for rows in told.histories.values() for row in rows}
    assert not [text for text in texts if "buyer-1" in text or any(trace_id in text for trace_id in ids)]


def test_nothing_is_told_of_what_services_do_by_themselves(told: Told) -> None:
    roots = {(span.service, span.name) for span in told.spans if not span.parent_span_id}
    assert not [root for root in roots if not root[1].startswith(("GET /", "POST /", "PUT /"))], roots
    assert not [root for root in roots if root[1] in ("GET /health/ready", "GET /v1/book")]


def test_metrics_of_the_shop_arrive(told: Told) -> None:
    last = {(point.service, point.name, *point.attributes.values()): point for point in told.metrics}
    assert last["orders", "hourglass.orders.placed"].value == 5
    assert last["orders", "hourglass.orders.paid"].value == 2
    assert last["orders", "hourglass.orders.closed", "expired"].value == 3
    assert last["orders", "hourglass.orders.closed", "seller-cancelled"].value == 1
    assert last["orders", "hourglass.orders.close.lateness"].count == 3
    assert last["payments", "hourglass.payments.succeeded"].value == 2
    assert last["payments", "hourglass.payments.refunded"].value == 1
    assert last["payments", "hourglass.payments.settlement.duration"].count == 2
    names_of = {(point.service, point.name) for point in told.metrics}
    assert {
        ("orders", "hourglass.orders.by_status"),
        ("payments", "hourglass.outbox.waiting"),
        ("orders", "http.server.request.duration"),
        ("payments", "http.server.request.duration"),
        ("payments", "http.client.request.duration"),
        ("sandbox-gateway", "http.server.request.duration"),
    } <= names_of

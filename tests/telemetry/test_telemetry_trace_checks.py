"""The checks of traces find what is wrong: each with a trace that lacks something, made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trace_checks import (
    GROUP,
    SQL,
    Edge,
    Life,
    Seen,
    Step,
    check_life,
    disconnections,
    edges_of,
    missing_steps,
    spans_of_jaeger,
)

from telemetry.trace_tree import ReceivedSpan, trace_document

TRACE, OTHER = 32 * "a", 32 * "b"


def span(number: int, parent: int, service: str, name: str, **attributes: str) -> ReceivedSpan:
    """A span of TRACE; 0 is no parent."""
    return ReceivedSpan(
        service=service,
        name=name,
        kind="INTERNAL",
        trace_id=TRACE,
        span_id=f"{number:016x}",
        parent_span_id=f"{parent:016x}" if parent else "",
        links=[],
        attributes={key.replace("_", "."): value for key, value in attributes.items()},
        events=[],
        start_ns=number * 1_000,
        end_ns=number * 1_000 + 1_000,
        status="UNSET",
    )


WHOLE = [
    span(1, 0, "orders", "POST /orders"),
    span(2, 1, "orders", "INSERT", db_system_name="sqlite"),
    span(3, 1, "mq-broker", "half order-events"),
    span(4, 3, "payments", "process order-events", **{GROUP: "payable-orders"}),
]
LIFE = Life(
    edges=(
        Edge("orders", "mq-broker", "half order-events"),
        Edge("mq-broker", "payments", "process order-events"),
    ),
    steps=(
        Step(None, Seen("orders", "POST /orders")),
        Step(Seen("orders", "POST /orders"), Seen("orders", SQL)),
        Step(Seen("mq-broker", "half order-events"), Seen("payments", "process order-events", "payable-orders")),
    ),
)


def test_a_whole_trace_passes_from_the_receiver_and_from_jaeger() -> None:
    check_life(WHOLE, LIFE)
    check_life(spans_of_jaeger({"data": [trace_document(WHOLE)]}), LIFE)
    assert edges_of(WHOLE) == set(LIFE.edges)


def test_a_trace_that_jaeger_has_not_got_yet_is_no_trace() -> None:
    assert spans_of_jaeger({"data": [], "errors": [{"code": 404}]}) == []
    assert disconnections([]) == ["there is no span"]


@pytest.mark.parametrize(
    ("spans", "sentence"),
    [
        ([*WHOLE[:2], WHOLE[3]], "payments: process order-events has a parent that was not received"),
        ([*WHOLE, span(5, 0, "payments", "POST /payments")], "2 roots: orders: POST /orders, payments: POST /payments"),
        (WHOLE[1:], "0 roots: none"),
        ([*WHOLE, replace(span(5, 1, "orders", "x"), trace_id=OTHER)], "these are 2 traces"),
        ([*WHOLE, WHOLE[1]], "a span is there twice"),
        (
            [*WHOLE[:3], replace(WHOLE[3], links=[(TRACE, 16 * "f")])],
            "payments: process order-events is linked with a span of its trace that was not received",
        ),
    ],
)
def test_a_trace_that_is_not_connected_is_found(spans: list[ReceivedSpan], sentence: str) -> None:
    assert sentence in disconnections(spans)
    with pytest.raises(AssertionError, match=sentence.split(":")[0]):
        check_life(spans, LIFE)


def test_a_link_into_another_trace_is_followed_where_that_trace_is_known() -> None:
    linked = [*WHOLE[:3], replace(WHOLE[3], links=[(OTHER, 16 * "1")])]
    there = replace(span(1, 0, "payments", "POST /payments"), trace_id=OTHER, span_id=16 * "1")
    assert disconnections(linked) == []
    assert disconnections(linked, [there]) == []
    (found,) = disconnections(linked, [replace(there, span_id=16 * "2")])
    assert found == "payments: process order-events is linked with a span elsewhere that was not received"


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        (replace(WHOLE[1], attributes={}), "orders: SQL, a child of orders: POST /orders"),
        (replace(WHOLE[3], attributes={GROUP: "refund-handler"}), "(payable-orders)"),
        (replace(WHOLE[3], parent_span_id=WHOLE[0].span_id), "a child of mq-broker: half order-events"),
        (replace(WHOLE[0], service="payments"), "orders: POST /orders, a child of nothing"),
    ],
)
def test_a_step_that_is_missing_or_of_another_service_is_named(changed: ReceivedSpan, missing: str) -> None:
    spans = [changed if one.span_id == changed.span_id else one for one in WHOLE]
    assert any(missing in str(step) for step in missing_steps(spans, LIFE)), missing_steps(spans, LIFE)
    with pytest.raises(AssertionError, match="the trace:"):
        check_life(spans, LIFE)


def test_an_edge_that_is_missing_is_named() -> None:
    spans = [*WHOLE[:3], replace(WHOLE[3], service="orders")]
    with pytest.raises(AssertionError, match=r"no edge .*payments"):
        check_life(spans, replace(LIFE, steps=()))

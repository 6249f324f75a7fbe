"""A trace as a tree of text, drawn from spans that are written down here; what Jaeger's own JSON says beside ours."""

from __future__ import annotations

from typing import Any

import pytest

from telemetry.testing.otlp_receiver import answer
from telemetry.trace_tree import (
    ReceivedEvent,
    ReceivedSpan,
    TraceFormatError,
    main,
    spans_of,
    trace_document,
    trace_tree,
)

TRACE = "a" * 32
MS = 1_000_000
TRACE_ID, OTHER_TRACE_ID = "0af7651916cd43dd8448eb211c80319c", "1bf7651916cd43dd8448eb211c80319c"


def span(id_: int, name: str, parent: int = 0, *, at: int = 0, took: int = 1, **fields: Any) -> ReceivedSpan:
    values: dict[str, Any] = {
        "service": "orders",
        "kind": "INTERNAL",
        "trace_id": TRACE,
        "links": [],
        "attributes": {},
        "events": [],
        "status": "UNSET",
    }
    return ReceivedSpan(
        **values | fields,
        name=name,
        span_id=f"{id_:016x}",
        parent_span_id=f"{parent:016x}" if parent else "",
        start_ns=at * MS,
        end_ns=(at + took) * MS,
    )


STORY = [
    span(3, "INSERT", 2, at=3, attributes={"db.system": "postgresql", "db.statement": "INSERT  INTO\n orders"}),
    span(1, "POST /orders", at=1, took=20, kind="SERVER", attributes={"http.status_code": 201}),
    span(2, "transaction order-events", 1, at=2, took=5, attributes={"hourglass.transaction.state": "COMMIT_MESSAGE"}),
    span(4, "process order-events", 1, at=30, kind="CONSUMER", service="payments", links=[(TRACE, f"{1:016x}")]),
    span(5, "other", 99, at=40, links=[("b" * 32, f"{7:016x}"), (TRACE, f"{2:016x}")]),
    span(6, "failed", 4, at=31, status="ERROR", status_message="no money", events=[ReceivedEvent("tried again", 0)]),
]


def test_a_tree_shows_parents_services_times_and_what_matters() -> None:
    assert trace_tree(STORY) == "\n".join(
        [
            f"trace {TRACE}: 6 spans of orders, payments",
            "POST /orders [orders, server] 20.0 ms, at 0.0 ms status=201",
            "├─ transaction order-events [orders, internal] 5.0 ms, at 1.0 ms state=COMMIT_MESSAGE",
            '│  └─ INSERT [orders, internal] 1.0 ms, at 2.0 ms db=postgresql "INSERT INTO orders"',
            "└─ process order-events [payments, consumer] 1.0 ms, at 29.0 ms",
            "   └─ failed [orders, internal] 1.0 ms, at 30.0 ms (tried again) FAILED: no money",
            f"other [orders, internal] 1.0 ms, at 39.0 ms -> trace {'b' * 32} span {7:016x} "
            "-> transaction order-events",
            "",
        ]
    )


def test_no_spans_are_no_tree() -> None:
    assert trace_tree([]) == "no spans\n"


def test_spans_whose_parents_form_a_ring_do_not_go_on_for_ever() -> None:
    assert trace_tree([span(1, "one", 2), span(2, "two", 1)]).startswith(f"trace {TRACE}: 2 spans")


def test_what_is_written_for_jaeger_is_read_again() -> None:
    read = {one.span_id: one for one in spans_of(trace_document(STORY))}
    assert trace_tree(read.values()) == trace_tree(STORY)


@pytest.mark.parametrize("document", [{}, {"spans": [{}], "processes": {}}, {"spans": [], "processes": None, "x": 1}])
def test_what_is_no_trace_is_rejected(document: Any) -> None:
    if document.get("spans") == []:
        assert spans_of(document) == []
    else:
        with pytest.raises(TraceFormatError, match="no trace of Jaeger's query API"):
            spans_of(document)


class Story:
    def spans(self) -> list[ReceivedSpan]:
        return STORY


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/", 200, "healthy"),
        ("/api/services", 200, "payments"),
        ("/api/services/payments/operations", 200, "process order-events"),
        ("/api/traces", 400, "'service' is required"),
        ("/api/traces?service=orders&limit=0", 400, "'limit' has to be 1 to"),
        ("/api/traces?service=orders&operation=INSERT", 200, "db.statement"),
        (f"/api/traces/{TRACE.upper()}", 200, "POST /orders"),
        ("/api/traces/1", 404, "trace not found"),
        ("/api/what", 404, "there is no /api/what"),
    ],
)
def test_the_query_api_answers_as_jaegers_does(target: str, status: int, text: str) -> None:
    code, document = answer(Story(), target)
    assert code == status
    assert text in str(document)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["http://127.0.0.1:1", "xyz"], "'xyz' is not a trace id"),
        (["127.0.0.1:1", "a"], "is not an address like http://127.0.0.1:16686"),
        (["http://127.0.0.1:1", "a"], "gives no trace"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert sentence in capsys.readouterr().err


def jaeger_span(span_id: str, parent: str, *links: tuple[str, str]) -> ReceivedSpan:
    return ReceivedSpan(
        service="orders",
        name="process order-events",
        kind="CONSUMER",
        trace_id=TRACE_ID,
        span_id=span_id,
        parent_span_id=parent,
        links=list(links),
        attributes={},
        events=[],
        start_ns=1_000,
        end_ns=2_000,
        status="UNSET",
    )


def test_a_link_with_the_parent_is_the_parent_where_jaeger_tells_nothing_else() -> None:
    document = trace_document([jaeger_span("b7ad6b7169203331", "00f067aa0ba902b7", (TRACE_ID, "00f067aa0ba902b7"))])
    [told] = document["spans"]
    told["references"] = [one for one in told["references"] if one["refType"] == "FOLLOWS_FROM"]
    [read] = spans_of(document)
    assert (read.parent_span_id, read.links) == ("00f067aa0ba902b7", [(TRACE_ID, "00f067aa0ba902b7")])


def test_a_link_into_another_trace_is_no_parent() -> None:
    [read] = spans_of(trace_document([jaeger_span("b7ad6b7169203331", "", (OTHER_TRACE_ID, "00f067aa0ba902b7"))]))
    assert (read.parent_span_id, read.links) == ("", [(OTHER_TRACE_ID, "00f067aa0ba902b7")])

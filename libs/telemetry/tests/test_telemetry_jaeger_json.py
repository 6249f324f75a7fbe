"""What Jaeger's own JSON says that ours does not."""

from __future__ import annotations

from telemetry.trace_tree import ReceivedSpan, spans_of, trace_document

TRACE_ID, OTHER_TRACE_ID = "0af7651916cd43dd8448eb211c80319c", "1bf7651916cd43dd8448eb211c80319c"


def span(span_id: str, parent: str, *links: tuple[str, str]) -> ReceivedSpan:
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
    document = trace_document([span("b7ad6b7169203331", "00f067aa0ba902b7", (TRACE_ID, "00f067aa0ba902b7"))])
    [told] = document["spans"]
    told["references"] = [one for one in told["references"] if one["refType"] == "FOLLOWS_FROM"]
    [read] = spans_of(document)
    assert (read.parent_span_id, read.links) == ("00f067aa0ba902b7", [(TRACE_ID, "00f067aa0ba902b7")])


def test_a_link_into_another_trace_is_no_parent() -> None:
    [read] = spans_of(trace_document([span("b7ad6b7169203331", "", (OTHER_TRACE_ID, "00f067aa0ba902b7"))]))
    assert (read.parent_span_id, read.links) == ("", [(OTHER_TRACE_ID, "00f067aa0ba902b7")])

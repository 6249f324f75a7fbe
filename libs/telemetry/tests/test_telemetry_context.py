"""The trace context travels in message properties and comes out unchanged.

Work that goes back into a trace, leaves it, or takes it into a thread; recorded in this process.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics

import telemetry
from telemetry import current_trace_id, extract, inject, joined_span, names, traceparent, tracer
from telemetry.context import in_this_span, outside_spans
from telemetry.testing.recorder import Recorder
from telemetry.trace_tree import ReceivedMetric, ReceivedSpan

TRACER = TracerProvider().get_tracer("tests")


def test_context_that_was_injected_is_extracted() -> None:
    properties = {"KEYS": "order-1"}
    with TRACER.start_as_current_span("send") as span:
        inject(properties)
    sent = span.get_span_context()

    received = trace.get_current_span(extract(properties)).get_span_context()

    assert properties["KEYS"] == "order-1"
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-9a-f]", properties["traceparent"])
    assert (received.trace_id, received.span_id, received.is_remote) == (sent.trace_id, sent.span_id, True)


def test_tracestate_travels_along() -> None:
    properties = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=1"}
    with TRACER.start_as_current_span("forward", context=extract(properties)):
        forwarded: dict[str, str] = {}
        inject(forwarded)
        assert current_trace_id() == "a" * 32
    assert forwarded["tracestate"] == "vendor=1"
    assert forwarded["traceparent"].split("-")[1] == "a" * 32
    assert forwarded["traceparent"].split("-")[2] != "b" * 16


def test_outside_a_span_nothing_is_injected() -> None:
    properties: dict[str, str] = {}
    inject(properties)
    assert properties == {}
    assert current_trace_id() is None


@pytest.mark.parametrize(
    "properties",
    [{}, {"traceparent": ""}, {"traceparent": "00-xyz"}, {"traceparent": f"00-{'0' * 32}-{'b' * 16}-01"}],
)
def test_absent_or_malformed_context_starts_a_new_trace(properties: dict[str, str]) -> None:
    assert not trace.get_current_span(extract(properties)).get_span_context().is_valid


def test_extract_ignores_the_span_that_is_current() -> None:
    with TRACER.start_as_current_span("unrelated"):
        assert not trace.get_current_span(extract({})).get_span_context().is_valid


def test_names_are_those_of_the_semantic_conventions() -> None:
    known = {
        value
        for module in (messaging_attributes, messaging_metrics)
        for name, value in vars(module).items()
        if name.startswith("MESSAGING_")
    }
    ours = {value for value in vars(names).values() if isinstance(value, str) and value.startswith("messaging.")}
    assert len(ours) > 10
    assert ours <= known
    assert names.span_name(names.OPERATION_SEND, "order-events") == "send order-events"


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as recorder:
        yield recorder


def spans(recorder: Recorder) -> dict[str, ReceivedSpan]:
    return {span.name: span for span in recorder.spans()}


def stored() -> str:
    """What an order placed an hour ago has in its row."""
    with tracer("tests").start_as_current_span("order"):
        header = traceparent()
    assert header is not None
    return header


def test_a_joined_span_is_in_the_trace_of_the_row_and_linked_with_the_request(recorder: Recorder) -> None:
    header = stored()
    with tracer("tests").start_as_current_span("request"), joined_span("cancel", header, attributes={"why": "asked"}):
        inside = current_trace_id()
    found = spans(recorder)
    order, request, cancel = found["order"], found["request"], found["cancel"]
    assert inside == cancel.trace_id == order.trace_id != request.trace_id
    assert (cancel.parent_span_id, cancel.links) == (order.span_id, [(request.trace_id, request.span_id)])
    assert (cancel.kind, cancel.attributes) == ("INTERNAL", {"why": "asked"})


def test_in_the_same_trace_it_is_a_plain_child(recorder: Recorder) -> None:
    with tracer("tests").start_as_current_span("request"), joined_span("cancel", traceparent()):
        pass
    found = spans(recorder)
    assert (found["cancel"].parent_span_id, found["cancel"].links) == (found["request"].span_id, [])


@pytest.mark.parametrize("header", [None, "", "00-nonsense", f"00-{'0' * 32}-{'1' * 16}-01"])
def test_without_a_trace_to_join_it_is_a_child_of_the_current_span(recorder: Recorder, header: str | None) -> None:
    with tracer("tests").start_as_current_span("request"), joined_span("cancel", header):
        pass
    found = spans(recorder)
    assert (found["cancel"].parent_span_id, found["cancel"].links) == (found["request"].span_id, [])


def test_outside_of_any_request_it_has_no_link(recorder: Recorder) -> None:
    header = stored()
    with joined_span("settle", header):
        pass
    found = spans(recorder)
    assert (found["settle"].parent_span_id, found["settle"].links) == (found["order"].span_id, [])


def test_an_error_is_noted_and_goes_on(recorder: Recorder) -> None:
    with pytest.raises(KeyError), joined_span("settle", None):
        raise KeyError("payment")
    (span,) = recorder.spans()
    assert (span.status, [event.name for event in span.events]) == ("ERROR", ["exception"])


def test_while_telemetry_is_off_the_ids_are_there_all_the_same() -> None:
    with Recorder() as recorder:
        header = stored()
    with joined_span("settle", header):
        assert current_trace_id() == header.split("-")[1]
    assert [span.name for span in recorder.spans()] == ["order"]
    assert not telemetry.is_tracing()
    assert not telemetry.is_observing()


def test_a_thread_has_the_span_of_its_caller(recorder: Recorder) -> None:
    found: list[str | None] = []
    with tracer("tests").start_as_current_span("request"):
        here = current_trace_id()
        function = in_this_span(lambda: found.append(current_trace_id()))
    for one in (function, lambda: found.append(current_trace_id())):
        thread = threading.Thread(target=one)
        thread.start()
        thread.join()
    assert found == [here, None]


async def test_a_task_outside_spans_has_none(recorder: Recorder) -> None:
    async def look() -> str | None:
        return current_trace_id()

    assert outside_spans() is None
    with tracer("tests").start_as_current_span("request"):
        here = current_trace_id()
        inside = asyncio.create_task(look())
        outside = asyncio.create_task(look(), context=outside_spans())
        assert await inside == here == current_trace_id()
        assert await outside is None


def test_a_recorder_sees_what_was_measured_since_it_began() -> None:
    name = "hourglass.tests.joined"
    counter = telemetry.meter("tests").create_counter(name, "{call}", "Joined")

    def counted(recorder: Recorder) -> list[ReceivedMetric]:
        """What other tests of this process have made, such as gauges, goes on telling."""
        return [point for point in recorder.metrics() if point.name == name]

    with Recorder() as recorder:
        counter.add(2, {"a": "b"})
        assert [(point.value, point.attributes) for point in counted(recorder)] == [(2.0, {"a": "b"})]
    with Recorder() as recorder:
        assert counted(recorder) == []
        counter.add(1, {"a": "b"})
        assert [point.value for point in counted(recorder)] == [1.0]


def test_a_part_can_be_sampled() -> None:
    with Recorder(sampler=TraceIdRatioBased(0.5)) as recorder:
        for _ in range(200):
            with tracer("tests").start_as_current_span("request"):
                pass
        assert 0 < len(recorder.spans()) < 200

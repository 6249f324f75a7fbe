"""The trace context travels in message properties and comes out unchanged."""

from __future__ import annotations

import re

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics

from telemetry import current_trace_id, extract, inject, names

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

"""What a process exports that was set up by OpenTelemetry's variables: to a real receiver, and on a page."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from telemetry import exporters
from telemetry.settings import read_settings
from telemetry.testing.otlp_receiver import JaegerQuery, OtlpReceiver, ReceivedTimeoutError
from telemetry.trace_tree import TraceNotFoundError, fetch_trace, spans_of, trace_document, trace_tree

PROGRAM = """
import logging, os, sys, urllib.request
from opentelemetry import trace
import telemetry
from telemetry.providers import PROVIDERS
telemetry.configure("shop")
tracer, meter = telemetry.tracer("tests"), telemetry.meter("tests")
orders = meter.create_counter("hourglass.tests.orders", "{order}", "Orders")
seconds = meter.create_histogram("hourglass.tests.duration", "s", "Duration")
with tracer.start_as_current_span("outer", attributes={"orders": 3, "names": ["a", "b"]}) as outer:
    outer.add_event("begun", {"at": 1.5})
    stored = telemetry.traceparent()
    with tracer.start_as_current_span("inner", kind=trace.SpanKind.PRODUCER):
        orders.add(3, {"status": "paid"})
        seconds.record(0.25)
with tracer.start_as_current_span("request"):
    with telemetry.joined_span("settle", stored):
        pass
try:
    with tracer.start_as_current_span("broken"):
        raise ValueError("no")
except ValueError:
    pass
if PROVIDERS.page_port():
    print(urllib.request.urlopen(f"http://127.0.0.1:{PROVIDERS.page_port()}/metrics").read().decode())
print("tracing", telemetry.is_tracing(), "measuring", telemetry.is_measuring(), file=sys.stderr)
telemetry.shutdown()
telemetry.shutdown()
print("afterwards", telemetry.is_tracing(), telemetry.is_measuring(), file=sys.stderr)
"""


def run(**variables: str) -> subprocess.CompletedProcess[str]:
    """The program with these variables and no others of OpenTelemetry."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        done = run(
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            OTEL_EXPORTER_PROMETHEUS_PORT="0",
            OTEL_EXPORTER_PROMETHEUS_HOST="127.0.0.1",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
        )
        assert done.returncode == 0, done.stderr
        assert "tracing True measuring True" in done.stderr
        assert "afterwards False False" in done.stderr
        receiver.page = done.stdout  # type: ignore[attr-defined]
        yield receiver


def test_spans_arrive_with_parents_links_attributes_and_events(receiver: OtlpReceiver) -> None:
    spans = {span.name: span for span in receiver.wait_for(lambda spans: len(spans) == 5)}
    outer, inner, settle, request = (spans[name] for name in ("outer", "inner", "settle", "request"))
    assert (outer.service, outer.kind, outer.parent_span_id, outer.status) == ("shop", "INTERNAL", "", "UNSET")
    assert outer.attributes == {"orders": 3, "names": ["a", "b"]}
    assert [(event.name, event.attributes) for event in outer.events] == [("begun", {"at": 1.5})]
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
    assert (inner.kind, inner.trace_id, inner.parent_span_id) == ("PRODUCER", outer.trace_id, outer.span_id)
    assert (settle.trace_id, settle.parent_span_id) == (outer.trace_id, outer.span_id)
    assert settle.links == [(request.trace_id, request.span_id)]
    assert (spans["broken"].status, spans["broken"].status_message) == ("ERROR", "ValueError: no")
    assert outer.resource["deployment.environment.name"] == "test"
    assert outer.resource["service.version"]
    assert len(str(outer.resource["service.instance.id"])) == 36


def test_measurements_arrive_and_are_on_the_page(receiver: OtlpReceiver) -> None:
    points = {point.name: point for point in receiver.wait_for_metrics(lambda points: len(points) >= 2)}
    orders, seconds = points["hourglass.tests.orders"], points["hourglass.tests.duration"]
    assert (orders.kind, orders.value, orders.attributes) == ("sum", 3.0, {"status": "paid"})
    assert (seconds.kind, seconds.value, seconds.count, seconds.unit) == ("histogram", 0.25, 1, "s")
    page = receiver.page.splitlines()  # type: ignore[attr-defined]
    assert 'hourglass_tests_orders_total{status="paid"} 3.0' in page
    assert "hourglass_tests_duration_seconds_count 1.0" in page
    assert any(line.startswith("process_resident_memory_bytes ") for line in page)


def test_a_trace_is_a_tree_also_by_way_of_jaegers_query_api(receiver: OtlpReceiver) -> None:
    spans = {span.name: span for span in receiver.wait_for(lambda spans: len(spans) == 5)}
    trace_id = spans["outer"].trace_id
    with JaegerQuery("127.0.0.1:0", receiver) as query:
        tree = trace_tree(fetch_trace(query.url, trace_id))
        with pytest.raises(TraceNotFoundError, match="404"):
            fetch_trace(query.url, "f" * 32)
        with urllib.request.urlopen(f"{query.url}/api/services") as answer:
            assert json.load(answer)["data"] == ["shop"]
        with urllib.request.urlopen(f"{query.url}/api/traces?service=shop&limit=2") as answer:
            assert len(json.load(answer)["data"]) == 2
        with urllib.request.urlopen(f"{query.url}/") as answer:
            assert answer.status == 200
    lines = tree.splitlines()
    assert lines[0] == f"trace {trace_id}: 3 spans of shop"
    assert [line.split(" [")[0] for line in lines[1:]] == ["outer", "├─ inner", "└─ settle"]
    assert "(begun)" in lines[1]
    assert f"-> trace {spans['request'].trace_id} span {spans['request'].span_id}" in lines[3]
    read_back = {span.name: span for span in spans_of(trace_document(receiver.trace(trace_id)))}
    assert read_back["settle"].links == spans["settle"].links
    assert read_back["inner"].kind == "PRODUCER"


def test_what_does_not_arrive_is_told(receiver: OtlpReceiver) -> None:
    with pytest.raises(ReceivedTimeoutError, match="shop: inner"):
        receiver.wait_for(lambda spans: len(spans) > 100, timeout=0.01)


@pytest.mark.parametrize("is_there", [False, True])
def test_an_endpoint_that_does_not_answer_holds_up_neither_work_nor_the_end(is_there: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if is_there else 1
        done = run(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")
    assert done.returncode == 0, done.stderr
    assert "tracing True measuring True" in done.stderr
    assert "afterwards False False" in done.stderr


def test_the_command_receives_answers_queries_and_ends_when_asked() -> None:
    command = [
        sys.executable,
        "-m",
        "telemetry.testing.otlp_receiver",
        "--listen",
        "127.0.0.1:0",
        "--query",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            _, endpoint, _, query = process.stdout.readline().split()
            assert run(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_METRICS_EXPORTER="none").returncode == 0
            with urllib.request.urlopen(f"{query}/api/traces?service=shop") as answer:
                traces = json.load(answer)["data"]
            assert sorted(len(trace["spans"]) for trace in traces) == [1, 1, 3]
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_with_nothing_set_spans_have_ids_and_nothing_is_recorded() -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert "tracing False measuring False" in done.stderr
    assert done.stdout == ""


def test_a_port_that_is_taken_is_named(receiver: OtlpReceiver) -> None:
    port = receiver.endpoint.rpartition(":")[2]
    done = run(
        OTEL_METRICS_EXPORTER="prometheus",
        OTEL_EXPORTER_PROMETHEUS_HOST="127.0.0.1",
        OTEL_EXPORTER_PROMETHEUS_PORT=port,
    )
    assert done.returncode == 1
    assert f"OTEL_EXPORTER_PROMETHEUS_PORT: 127.0.0.1:{port} cannot be listened on" in done.stderr


def test_a_silent_connection_to_the_page_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "PAGE_SILENCE_MAX_S", 0.05)
    exporting = exporters.Exporters(read_settings({
        "OTEL_METRICS_EXPORTER": "prometheus",
        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
        "OTEL_EXPORTER_PROMETHEUS_PORT": "0",
    }))  # fmt: skip
    try:
        with socket.create_connection(("127.0.0.1", exporting.page_port() or 0)) as silent:
            silent.settimeout(10)
            assert silent.recv(1) == b""
    finally:
        exporting.close_page()

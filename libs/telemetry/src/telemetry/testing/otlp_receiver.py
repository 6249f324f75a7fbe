"""A receiver of OTLP over gRPC that keeps what it gets in memory.

    with OtlpReceiver() as receiver:
        ... start a process with OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint ...
        receiver.wait_for(lambda spans: len(spans) >= 3)

As a command it stands in for Jaeger, with OTLP on one port and the part of Jaeger's query API that a person and a test
use on another:

    python -m telemetry.testing.otlp_receiver --listen 127.0.0.1:4317 --query 127.0.0.1:16686
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import parse_qs, urlsplit

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from telemetry.trace_tree import KINDS, STATUSES, ReceivedEvent, ReceivedMetric, ReceivedSpan, Value, trace_document

SERVICE_NAME = "service.name"

LIMIT = 20  # traces, Jaeger's default
LIMIT_MAX = 1_500

SPANS_MAX = 200_000  # the oldest give way
METRICS_MAX = 200_000
RECEIVERS = 4  # requests at the same time
STOP_S = 2.0
SERVER_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 * 1024 * 1024))

Spans = Callable[[list[ReceivedSpan]], bool]


def spans_in(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    """Every span of the request."""
    for of_resource in request.resource_spans:
        resource = _values(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield _span(span, resource, of_scope.scope.name)


def metrics_in(request: ExportMetricsServiceRequest) -> Iterator[ReceivedMetric]:
    """Every point of every gauge, sum and histogram of the request."""
    for of_resource in request.resource_metrics:
        service = str(_values(of_resource.resource.attributes).get(SERVICE_NAME, ""))
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                yield from _points(metric, service)


def _span(span: Span, resource: dict[str, Value], scope: str) -> ReceivedSpan:
    return ReceivedSpan(
        service=str(resource.get(SERVICE_NAME, "")),
        name=span.name,
        kind=KINDS[span.kind],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        attributes=_values(span.attributes),
        events=[ReceivedEvent(one.name, one.time_unix_nano, _values(one.attributes)) for one in span.events],
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        status=STATUSES[span.status.code],
        status_message=span.status.message,
        scope=scope,
        resource=resource,
    )


def _points(metric: Metric, service: str) -> Iterator[ReceivedMetric]:
    kind = metric.WhichOneof("data")
    if kind == "histogram":
        for point in metric.histogram.data_points:
            attributes = _values(point.attributes)
            yield ReceivedMetric(
                service, metric.name, metric.unit, kind, attributes, point.sum, point.count, point.time_unix_nano
            )
    elif kind in {"gauge", "sum"}:
        for number in (metric.gauge if kind == "gauge" else metric.sum).data_points:
            value = float(number.as_int if number.WhichOneof("value") == "as_int" else number.as_double)
            yield ReceivedMetric(
                service, metric.name, metric.unit, kind, _values(number.attributes), value, 1, number.time_unix_nano
            )


def _values(attributes: Iterable[KeyValue]) -> dict[str, Value]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: AnyValue) -> Value:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "bytes_value":
            return value.bytes_value
        case "array_value":
            return [_value(one) for one in value.array_value.values]
        case "kvlist_value":
            return {one.key: _value(one.value) for one in value.kvlist_value.values}
        case _:
            return None


class SpanSource(Protocol):
    """Where the spans are."""

    def spans(self) -> list[ReceivedSpan]:
        """All of them."""


class JaegerQuery:
    """Serves from `__enter__` to `__exit__`, in threads of its own. Raises OSError, ValueError for the address."""

    def __init__(self, address: str, source: SpanSource) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{address!r} is not HOST:PORT")
        self._server = ThreadingHTTPServer((host, int(port)), _handler(source))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="jaeger query", daemon=True)
        self.url = f"http://{host}:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def answer(source: SpanSource, target: str) -> tuple[int, dict[str, Any]]:
    """Status and document for a GET of `target`, the path with its query."""
    url = urlsplit(target)
    parts = [part for part in url.path.split("/") if part]
    match parts:
        case []:
            return 200, {"status": "healthy"}
        case ["api", "services"]:
            services = sorted({span.service for span in source.spans()})
            return 200, _document(services)
        case ["api", "traces"]:
            return _found(source, parse_qs(url.query))
        case ["api", "traces", trace_id]:
            wanted = trace_id.lower().zfill(32)
            spans = [span for span in source.spans() if span.trace_id == wanted]
            return (200, _document([trace_document(spans)])) if spans else _problem(404, "trace not found")
        case ["api", "services", service, "operations"]:
            return 200, _document(sorted({span.name for span in source.spans() if span.service == service}))
        case _:
            return _problem(404, f"there is no {url.path}")


def _found(source: SpanSource, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
    service, operation = query.get("service", [""])[0], query.get("operation", [""])[0]
    limit = query.get("limit", [str(LIMIT)])[0]
    if not service:
        return _problem(400, "parameter 'service' is required")
    if not limit.isdigit() or not 0 < int(limit) <= LIMIT_MAX:
        return _problem(400, f"parameter 'limit' has to be 1 to {LIMIT_MAX}, not {limit!r}")
    traces: dict[str, list[ReceivedSpan]] = defaultdict(list)
    for span in source.spans():
        traces[span.trace_id].append(span)
    matching = [spans for spans in traces.values() if _matches(spans, service, operation)]
    matching.sort(key=lambda spans: min(span.start_ns for span in spans), reverse=True)
    return 200, _document([trace_document(spans) for spans in matching[: int(limit)]])


def _matches(spans: Iterable[ReceivedSpan], service: str, operation: str) -> bool:
    return any(span.service == service and operation in {"", span.name} for span in spans)


def _document(data: list[Any]) -> dict[str, Any]:
    return {"data": data, "total": len(data), "limit": 0, "offset": 0, "errors": None}


def _problem(status: int, text: str) -> tuple[int, dict[str, Any]]:
    return status, {**_document([]), "data": None, "errors": [{"code": status, "msg": text}]}


def _handler(source: SpanSource) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = answer(source, self.path)
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Requests are not logged."""

    return Handler


class ReceivedTimeoutError(AssertionError):
    """What was waited for has not arrived; the sentence lists what has."""


class OtlpReceiver:
    """Runs from `__enter__` to `__exit__`, in threads of its own. `address` is host:port, port 0 for any.

    `span_count` counts what has arrived; with `keep` False that is all, which costs little. Raises OSError if the
    address cannot be had.
    """

    def __init__(self, address: str = "127.0.0.1:0", *, keep: bool = True) -> None:
        self._address = address
        self.keep = keep
        self.span_count = 0
        self._spans: deque[ReceivedSpan] = deque(maxlen=SPANS_MAX)
        self._metrics: deque[ReceivedMetric] = deque(maxlen=METRICS_MAX)
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        """For OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://{self._address.rpartition(':')[0]}:{self._port}"

    def __enter__(self) -> Self:
        server = grpc.server(ThreadPoolExecutor(RECEIVERS, "otlp receiver"), options=SERVER_OPTIONS)
        add_TraceServiceServicer_to_server(_Traces(self), server)  # type: ignore[no-untyped-call]
        add_MetricsServiceServicer_to_server(_Metrics(self), server)  # type: ignore[no-untyped-call]
        try:
            self._port = server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise OSError(f"{self._address} cannot be listened on: {error}") from error
        server.start()
        self._server = server
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop(STOP_S).wait()

    def spans(self) -> list[ReceivedSpan]:
        """All that have arrived, in their order."""
        with self._changed:
            return list(self._spans)

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """Those of one trace."""
        return [span for span in self.spans() if span.trace_id == trace_id]

    def metrics(self) -> list[ReceivedMetric]:
        """All points that have arrived, in their order; the last one of a series is its newest."""
        with self._changed:
            return list(self._metrics)

    def clear(self) -> None:
        """Forget everything."""
        with self._changed:
            self.span_count = 0
            self._spans.clear()
            self._metrics.clear()

    def wait_for(self, predicate: Spans, timeout: float = 10.0) -> list[ReceivedSpan]:
        """The spans as soon as `predicate` is true of them. Raises ReceivedTimeoutError after `timeout` seconds."""
        with self._changed:
            if self._changed.wait_for(lambda: predicate(list(self._spans)), timeout):
                return list(self._spans)
            names = sorted({f"{span.service}: {span.name}" for span in self._spans})
        raise ReceivedTimeoutError(f"not within {timeout} s; {len(names)} kinds of spans arrived: {'; '.join(names)}")

    def wait_for_metrics(
        self, predicate: Callable[[list[ReceivedMetric]], bool], timeout: float = 10.0
    ) -> list[ReceivedMetric]:
        """The same for metrics."""
        with self._changed:
            if self._changed.wait_for(lambda: predicate(list(self._metrics)), timeout):
                return list(self._metrics)
            names = sorted({f"{point.service}: {point.name}" for point in self._metrics})
        raise ReceivedTimeoutError(f"not within {timeout} s; these metrics arrived: {'; '.join(names)}")

    def received_spans(self, spans: Sequence[ReceivedSpan]) -> None:
        """Keep them, and wake the calls that wait."""
        with self._changed:
            self.span_count += len(spans)
            self._spans.extend(spans)
            self._changed.notify_all()

    def counted_spans(self, count: int) -> None:
        """So many have arrived, and are not kept."""
        with self._changed:
            self.span_count += count

    def received_metrics(self, points: Sequence[ReceivedMetric]) -> None:
        """The same for metrics."""
        with self._changed:
            self._metrics.extend(points)
            self._changed.notify_all()


class _Traces(TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:  # noqa: N802
        if self._receiver.keep:
            self._receiver.received_spans(list(spans_in(request)))
        else:
            scopes = (scope for resource in request.resource_spans for scope in resource.scope_spans)
            self._receiver.counted_spans(sum(len(scope.spans) for scope in scopes))
        return ExportTraceServiceResponse()


class _Metrics(MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: ExportMetricsServiceRequest, context: Any) -> ExportMetricsServiceResponse:  # noqa: N802
        if self._receiver.keep:
            self._receiver.received_metrics(list(metrics_in(request)))
        return ExportMetricsServiceResponse()


def main(arguments: Sequence[str] | None = None) -> int:
    """Receive until SIGTERM or SIGINT; returns 0, or 1 when an address cannot be had."""
    parser = argparse.ArgumentParser(
        prog="python -m telemetry.testing.otlp_receiver", description="Stands in for Jaeger: OTLP in, JSON out."
    )
    parser.add_argument("--listen", default="127.0.0.1:4317", metavar="HOST:PORT", help="OTLP over gRPC")
    parser.add_argument("--query", default="127.0.0.1:16686", metavar="HOST:PORT", help="Jaeger's query API")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with OtlpReceiver(options.listen) as receiver, JaegerQuery(options.query, receiver) as query:
            print(f"otlp {receiver.endpoint} query {query.url}", flush=True)
            stop.wait()
    except (OSError, ValueError) as error:
        print(f"otlp_receiver: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

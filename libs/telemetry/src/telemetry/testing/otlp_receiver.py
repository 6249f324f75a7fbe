"""A receiver of OTLP over gRPC that keeps what it gets in memory.

    with OtlpReceiver() as receiver:
        ... start a process with OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint ...
        receiver.wait_for(lambda spans: len(spans) >= 3)

As a command it stands in for Jaeger, with OTLP on one port and Jaeger's query API on another:

    python -m telemetry.testing.otlp_receiver --listen 127.0.0.1:4317 --query 127.0.0.1:16686
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

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

from telemetry.received import ReceivedMetric, ReceivedSpan
from telemetry.testing.jaeger_query import JaegerQuery
from telemetry.testing.otlp_decoding import metrics_in, spans_in

SPANS_MAX = 200_000  # the oldest give way
METRICS_MAX = 200_000
RECEIVERS = 4  # requests at the same time
STOP_S = 2.0
SERVER_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 * 1024 * 1024))

Spans = Callable[[list[ReceivedSpan]], bool]


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
        """Keep them, and wake who waits."""
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

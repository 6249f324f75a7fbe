"""What an OTLP request carries, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from telemetry.received import KINDS, STATUSES, ReceivedEvent, ReceivedMetric, ReceivedSpan, Value

SERVICE_NAME = "service.name"


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

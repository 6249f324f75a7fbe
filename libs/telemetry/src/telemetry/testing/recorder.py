"""Spans and measurements of this process, kept in memory: for tests that need no other process.

    with Recorder() as recorder:
        ...
    assert [span.name for span in recorder.spans()] == ["send orders", "process orders"]

OpenTelemetry sets the providers of a process once, so all recorders of a process share them; what one has recorded the
next one does not see. Outside a recorder nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import format_span_id, format_trace_id

from telemetry.providers import PROVIDERS
from telemetry.trace_tree import ReceivedEvent, ReceivedMetric, ReceivedSpan, Value

RECORDED_SERVICE = "recorded"


class _Shared:
    """What all recorders of the process share."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self._is_installed = False

    def install(self) -> None:
        if self._is_installed:
            return
        self._is_installed = True
        resource = Resource({"service.name": RECORDED_SERVICE})
        if PROVIDERS.tracer_provider is None:
            PROVIDERS.install(resource)
        if PROVIDERS.tracer_provider is not None:
            PROVIDERS.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        if PROVIDERS.meter_provider is None:
            PROVIDERS.measure(MeterProvider([self.reader], resource, shutdown_on_exit=False))
        else:
            PROVIDERS.meter_provider.add_metric_reader(self.reader)


_SHARED = _Shared()


class Recorder:
    """Records from `__enter__` to `__exit__`; without `tracing` or `measuring`, not that. Not within another one."""

    def __init__(self, *, tracing: bool = True, measuring: bool = True, sampler: Sampler = ALWAYS_ON) -> None:
        self._rule = sampler if tracing else None
        self._measuring = measuring
        self._before: dict[tuple[str, tuple[tuple[str, Value], ...]], tuple[float, int]] = {}

    def __enter__(self) -> Self:
        _SHARED.install()
        _SHARED.exporter.clear()
        self._before = {_series(point): (point.value, point.count) for point in _points()}
        PROVIDERS.sample(self._rule)
        PROVIDERS.set_measuring(self._measuring)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        PROVIDERS.sample(None)
        PROVIDERS.set_measuring(False)

    def spans(self) -> list[ReceivedSpan]:
        """Those that have ended, in the order in which they did."""
        return [_received(span) for span in _SHARED.exporter.get_finished_spans()]

    def metrics(self) -> list[ReceivedMetric]:
        """What was measured since the beginning, one point for each series that has changed."""
        changed = []
        for point in _points():
            value, count = self._before.get(_series(point), (0.0, 0))
            if point.kind == "gauge":
                changed.append(point)
            elif (point.value, point.count) != (value, count):
                number = point.count - count if point.kind == "histogram" else 1
                changed.append(
                    ReceivedMetric(
                        point.service,
                        point.name,
                        point.unit,
                        point.kind,
                        point.attributes,
                        point.value - value,
                        number,
                        point.time_ns,
                    )
                )
        return changed


def _series(point: ReceivedMetric) -> tuple[str, tuple[tuple[str, Value], ...]]:
    return point.name, tuple(sorted(point.attributes.items(), key=lambda item: item[0]))


def _points() -> Iterator[ReceivedMetric]:
    data = _SHARED.reader.get_metrics_data()
    for of_resource in data.resource_metrics if data is not None else ():
        service = str(of_resource.resource.attributes.get("service.name", ""))
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                for point in metric.data.data_points:
                    attributes = _plain(point.attributes)
                    if isinstance(point, HistogramDataPoint):
                        kind, value, count = "histogram", float(point.sum), point.count
                    elif isinstance(point, NumberDataPoint):
                        kind = type(metric.data).__name__.lower()
                        value, count = float(point.value), 1
                    else:
                        continue
                    yield ReceivedMetric(
                        service, metric.name, metric.unit or "", kind, attributes, value, count, point.time_unix_nano
                    )


def _received(span: ReadableSpan) -> ReceivedSpan:
    context = span.get_span_context()
    if context is None:
        raise ValueError(f"the span {span.name} has no context")
    resource = _plain(span.resource.attributes)
    return ReceivedSpan(
        service=str(resource.get("service.name", "")),
        name=span.name,
        kind=span.kind.name,
        trace_id=format_trace_id(context.trace_id),
        span_id=format_span_id(context.span_id),
        parent_span_id=format_span_id(span.parent.span_id) if span.parent is not None else "",
        links=[(format_trace_id(one.context.trace_id), format_span_id(one.context.span_id)) for one in span.links],
        attributes=_plain(span.attributes),
        events=[ReceivedEvent(one.name, one.timestamp, _plain(one.attributes)) for one in span.events],
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        status=span.status.status_code.name,
        status_message=span.status.description or "",
        scope=span.instrumentation_scope.name if span.instrumentation_scope is not None else "",
        resource=resource,
    )


def _plain(attributes: object) -> dict[str, Value]:
    items = attributes.items() if hasattr(attributes, "items") else ()
    return {str(name): list(value) if isinstance(value, tuple) else value for name, value in items}

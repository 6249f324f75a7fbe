"""The exporters of spans and measurements: OTLP over gRPC, and a page that Prometheus reads.

Imported by a process that exports something, and by no other: these libraries take long to load.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Any
from wsgiref.simple_server import WSGIServer

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from telemetry.settings import OTLP, PROMETHEUS, PROMETHEUS_PORT, TelemetryConfigError, TelemetrySettings

log = logging.getLogger(__name__)

# A connection to the page holds a thread. Prometheus scrapes within 10 s by default.
PAGE_SILENCE_MAX_S = 10.0


class Exporters:
    """What the settings ask for, running. Raises TelemetryConfigError if the page's address cannot be had."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self.readers: list[MetricReader] = []
        self.spans: BatchSpanProcessor | None = None
        self._page: tuple[WSGIServer, threading.Thread] | None = None
        self._span_exporter: OTLPSpanExporter | None = None
        self._metric_exporter: OTLPMetricExporter | None = None
        if PROMETHEUS in settings.metrics:
            self._open_page(settings)
        if OTLP in settings.metrics:
            self._metric_exporter = OTLPMetricExporter()
            self.readers.append(
                PeriodicExportingMetricReader(
                    self._metric_exporter, settings.metric_interval_ms, settings.metric_timeout_ms
                )
            )
        if settings.traces:
            self._span_exporter = OTLPSpanExporter()
            self.spans = BatchSpanProcessor(
                self._span_exporter,
                max_queue_size=settings.batch.queue_size,
                schedule_delay_millis=settings.batch.schedule_delay_ms,
                max_export_batch_size=settings.batch.batch_size,
            )

    def meter_provider(self, resource: Resource) -> MeterProvider:
        """What measures for all these readers."""
        return MeterProvider(self.readers, resource, shutdown_on_exit=False)

    def page_port(self) -> int | None:
        """Where the page for Prometheus is served, or None."""
        return None if self._page is None else self._page[0].server_port

    def close_page(self) -> None:
        """Serve the page no longer."""
        page, self._page = self._page, None
        if page is not None:
            server, thread = page
            server.shutdown()
            server.server_close()
            thread.join()

    def break_off(self) -> None:
        """End the exports that are under way, whatever becomes of what they carry."""
        for exporter in (self._span_exporter, self._metric_exporter):
            if exporter is not None:
                exporter.shutdown(timeout_millis=0)

    def _open_page(self, settings: TelemetrySettings) -> None:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # CPU time, memory and open files of the process
        host, port = settings.prometheus_host, settings.prometheus_port
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise TelemetryConfigError(f"{PROMETHEUS_PORT}: {host}:{port} cannot be listened on: {error}") from error
        server.RequestHandlerClass = _ending_silence(server.RequestHandlerClass)
        self._page = server, thread
        self.readers.append(PrometheusMetricReader(scope_info_enabled=False, registry=registry))
        log.info("metrics are served for Prometheus", extra={"host": host, "port": self.page_port()})


def _ending_silence(handler: Any) -> Any:
    """The page's handler of requests, which ends a connection that sends nothing for PAGE_SILENCE_MAX_S."""

    class Handler(handler):  # type: ignore[misc]
        timeout = PAGE_SILENCE_MAX_S

        def handle(self) -> None:
            with suppress(TimeoutError):
                super().handle()

    return Handler

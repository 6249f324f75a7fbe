"""Logging, and the tracer and meter providers of this process: set up once, from OpenTelemetry's environment variables.

    off       (as long as nothing is asked for) spans have ids and record nothing; instruments measure nothing
    running   spans that the sampler takes are exported over OTLP; measurements over OTLP, or on a page for Prometheus
    ended     as off, for good: OpenTelemetry sets the providers of a process only once

There is one sampler for each process, whose rule changes when telemetry ends or a test begins. `is_tracing` and
`is_measuring` are what hot paths ask before they make a span or take a time.

A client without telemetry needs no more than OpenTelemetry's API. `configure` needs the extra `export`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer

from telemetry.settings import TelemetryConfigError, TelemetrySettings, read_settings

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import Sampler

    from telemetry.exporters import Exporters
    from telemetry.sampling import ProcessSampler

LAST_EXPORT_SHARE = 0.75  # of the time for a shutdown; what is not out by then is given up

log = logging.getLogger(__name__)

_MISSING = "there is no module {}; pip install hourglass-telemetry[export]"
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Providers:
    """What this process has set up. There is one, `PROVIDERS`; nothing is set up on import."""

    def __init__(self) -> None:
        self.tracing = False
        self.measuring = False
        self.observing = False  # tracing or measuring
        self.tracer_provider: TracerProvider | None = None
        self.meter_provider: MeterProvider | None = None
        self.sampler: ProcessSampler | None = None
        self._exporters: Exporters | None = None

    def set_up(self, service_name: str, environment: Mapping[str, str], port: int = 0) -> None:
        """Follow these variables, unless that has happened. Raises TelemetryConfigError, and then nothing is set up."""
        if self.tracer_provider is not None:
            return
        settings = read_settings(environment)
        try:
            from telemetry.sampling import resource_of  # noqa: PLC0415 - a client does without the SDK
        except ModuleNotFoundError as error:
            raise TelemetryConfigError(_MISSING.format(error.name)) from error
        resource = resource_of(service_name, port)
        if not (settings.traces or settings.metrics):
            self.install(resource)
            return
        # Half of what a client takes to be imported, and few processes need it.
        from telemetry.exporters import Exporters  # noqa: PLC0415

        exporters = Exporters(settings)
        self.install(resource)
        self._exporters = exporters
        self._begin(exporters, settings, resource)

    def _begin(self, exporters: Exporters, settings: TelemetrySettings, resource: Resource) -> None:
        if exporters.spans is not None and self.tracer_provider is not None:
            self.tracer_provider.add_span_processor(exporters.spans)
            if settings.sampler != "always_off":
                from telemetry.sampling import sampler_of  # noqa: PLC0415

                self.sample(sampler_of(settings.sampler, settings.sampling_ratio))
        if exporters.readers:
            self.measure(exporters.meter_provider(resource))

    def install(self, resource: Resource) -> None:
        """A tracer provider that hands out ids and records nothing yet."""
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

        from telemetry.sampling import ProcessSampler  # noqa: PLC0415

        self.sampler = ProcessSampler()
        self.tracer_provider = TracerProvider(self.sampler, resource, shutdown_on_exit=False)
        trace.set_tracer_provider(self.tracer_provider)

    def sample(self, rule: Sampler | None) -> None:
        """Record what `rule` says from now on; nothing without one."""
        if self.sampler is not None:
            self.sampler.follow(rule)
        self.tracing = rule is not None
        self.observing = self.tracing or self.measuring

    def measure(self, provider: MeterProvider) -> None:
        """Measure into this provider from now on; there can be only one."""
        self.meter_provider = provider
        metrics.set_meter_provider(provider)
        self.set_measuring(True)

    def set_measuring(self, wanted: bool) -> None:
        """Whether hot paths measure from now on."""
        self.measuring = wanted
        self.observing = self.tracing or self.measuring

    def page_port(self) -> int | None:
        """Where the page for Prometheus is served, or None."""
        return None if self._exporters is None else self._exporters.page_port()

    def end(self, timeout_s: float) -> None:
        """Export what waits, for `timeout_s` at most, and record nothing any more."""
        self.sample(None)
        self.set_measuring(False)
        exporters, self._exporters = self._exporters, None
        if exporters is None:
            return
        ends = [provider.shutdown for provider in (self.tracer_provider, self.meter_provider) if provider is not None]
        threads = [threading.Thread(target=_quietly, args=(end,), daemon=True) for end in (*ends, exporters.close_page)]
        for thread in threads:
            thread.start()
        _join(threads, timeout_s * LAST_EXPORT_SHARE)
        if any(thread.is_alive() for thread in threads):
            log.warning("telemetry could not be exported before the end")
            _quietly(exporters.break_off)
            _join(threads, timeout_s * (1 - LAST_EXPORT_SHARE))


PROVIDERS = Providers()


def is_tracing() -> bool:
    """Do recorded spans go anywhere? While they do not, no span has to be made and no context sent along."""
    return PROVIDERS.tracing


def is_measuring() -> bool:
    """Do measurements go anywhere?"""
    return PROVIDERS.measuring


def is_observing() -> bool:
    """Is one of the two so? The one question of a hot path that does both."""
    return PROVIDERS.observing


def tracer(name: str) -> Tracer:
    """The tracer of the module or package `name`; one that was taken before `configure` works as well."""
    return trace.get_tracer(name)


def meter(name: str) -> Meter:
    """The meter of the module or package `name`; one that was taken before `configure` works as well."""
    return metrics.get_meter(name)


def observe(service_name: str) -> None:
    """Set up traces and metrics as `configure` does, and leave the logging alone: for programs that have their own.

    Raises TelemetryConfigError.
    """
    PROVIDERS.set_up(service_name, os.environ)


def shutdown(timeout_s: float = 2.0) -> None:
    """Export what waits and stop; `timeout_s` at most, whatever the other side does. Never raises."""
    _quietly(lambda: PROVIDERS.end(timeout_s))


def _quietly(act: Callable[[], None]) -> None:
    """The end of a process goes on whatever its telemetry does; what went wrong is in the log."""
    try:
        act()
    except Exception:
        log.warning("telemetry did not end as it should", exc_info=True)


def _join(threads: list[threading.Thread], seconds: float) -> None:
    for thread in threads:
        thread.join(seconds / len(threads))


def configure(service_name: str, log_level: str = "INFO", *, port: int = 0) -> None:
    """Log as `service_name` from `log_level` on; the first call also sets up traces and metrics.

    A process that listens on `port` keeps its service.instance.id, `host:port`, when it is started again; without a
    port (0) the id is random. OTEL_RESOURCE_ATTRIBUTES names another.

    A second call replaces the logging of the first; the providers of a process never change. Raises ValueError for a
    level that is none of `LOG_LEVELS`, and TelemetryConfigError for one of OpenTelemetry's environment variables.
    """
    if log_level not in LOG_LEVELS:
        raise ValueError(f"the log level {log_level!r} is none of {', '.join(LOG_LEVELS)}")
    try:
        from telemetry.logs import configure_logging  # noqa: PLC0415 - only services have structlog
    except ModuleNotFoundError as error:
        raise TelemetryConfigError(_MISSING.format(error.name)) from error
    configure_logging(service_name, log_level)
    PROVIDERS.set_up(service_name, os.environ, port)


def current_trace_id() -> str | None:
    """The trace of the current span as 32 hex digits, or None outside a span."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None

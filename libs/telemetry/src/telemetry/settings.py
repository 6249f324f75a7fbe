"""The settings of OpenTelemetry's environment variables, read once and checked.

The names, the values and the defaults are those of the OpenTelemetry specification, with two differences: nothing is
exported unless a variable names an endpoint or an exporter, and a value that is not understood is an error instead of a
line in the log. An empty variable counts as one that is not set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

OTLP = "otlp"
PROMETHEUS = "prometheus"
NONE = "none"
TRACES_EXPORTERS = (OTLP, NONE)
METRICS_EXPORTERS = (OTLP, PROMETHEUS, NONE)
RATIO_SAMPLERS = ("traceidratio", "parentbased_traceidratio")
SAMPLERS = ("always_on", "always_off", "parentbased_always_on", "parentbased_always_off", *RATIO_SAMPLERS)

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
PROMETHEUS_HOST = "OTEL_EXPORTER_PROMETHEUS_HOST"
PROMETHEUS_PORT = "OTEL_EXPORTER_PROMETHEUS_PORT"
PROTOCOLS = (
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
)
COMPRESSIONS = (
    "OTEL_EXPORTER_OTLP_COMPRESSION",
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION",
)
# The exporters take these in seconds.
EXPORT_TIMEOUTS = (
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
)

DEFAULT_PROMETHEUS_HOST = "localhost"
DEFAULT_PROMETHEUS_PORT = 9464
DEFAULT_SAMPLER = "parentbased_always_on"
DEFAULT_QUEUE_SIZE = 2048
DEFAULT_BATCH_SIZE = 512
DEFAULT_SCHEDULE_DELAY_MS = 5000
DEFAULT_METRIC_INTERVAL_MS = 60_000
DEFAULT_METRIC_TIMEOUT_MS = 30_000


class TelemetryConfigError(ValueError):
    """One of OpenTelemetry's variables cannot be followed; the sentence names it and says what is allowed."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How spans wait for their export: `queue_size` at most, `batch_size` at once, `schedule_delay_ms` at longest."""

    queue_size: int
    batch_size: int
    schedule_delay_ms: int


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What is recorded and where it goes; `metrics` is empty when nothing is measured."""

    disabled: bool
    traces: bool
    metrics: frozenset[str]
    sampler: str
    sampling_ratio: float
    batch: BatchSettings
    metric_interval_ms: int
    metric_timeout_ms: int
    prometheus_host: str
    prometheus_port: int


def read_settings(environment: Mapping[str, str]) -> TelemetrySettings:
    """The settings of these variables. Raises TelemetryConfigError, also for what the exporters read by themselves."""
    given = {name: text.strip() for name, text in environment.items() if name.startswith("OTEL_") and text.strip()}
    _check_exporter_variables(given)
    disabled = _boolean(given, "OTEL_SDK_DISABLED")
    sampler = _one_of(given, "OTEL_TRACES_SAMPLER", SAMPLERS, DEFAULT_SAMPLER)
    traces, metrics = _traces(given), _metrics(given)
    return TelemetrySettings(
        disabled=disabled,
        traces=traces and not disabled,
        metrics=frozenset() if disabled else metrics,
        sampler=sampler,
        sampling_ratio=_ratio(given, sampler),
        batch=_batch(given),
        metric_interval_ms=_positive(given, "OTEL_METRIC_EXPORT_INTERVAL", DEFAULT_METRIC_INTERVAL_MS),
        metric_timeout_ms=_positive(given, "OTEL_METRIC_EXPORT_TIMEOUT", DEFAULT_METRIC_TIMEOUT_MS),
        prometheus_host=given.get(PROMETHEUS_HOST, DEFAULT_PROMETHEUS_HOST),
        prometheus_port=_port(given),
    )


def _traces(given: Mapping[str, str]) -> bool:
    default = OTLP if ENDPOINT in given or TRACES_ENDPOINT in given else NONE
    return _one_of(given, "OTEL_TRACES_EXPORTER", TRACES_EXPORTERS, default) == OTLP


def _metrics(given: Mapping[str, str]) -> frozenset[str]:
    name = "OTEL_METRICS_EXPORTER"
    if name not in given:
        pushed = {OTLP} if ENDPOINT in given or METRICS_ENDPOINT in given else set()
        return frozenset(pushed | ({PROMETHEUS} if PROMETHEUS_PORT in given else set()))
    named = [part.strip().lower() for part in given[name].split(",") if part.strip()]
    for part in named:
        if part not in METRICS_EXPORTERS:
            raise TelemetryConfigError(f"{name}: {part!r} is none of {', '.join(METRICS_EXPORTERS)}")
    if NONE in named and len(set(named)) > 1:
        raise TelemetryConfigError(f"{name}: {given[name]!r} asks for none and for others")
    return frozenset(named) - {NONE}


def _batch(given: Mapping[str, str]) -> BatchSettings:
    queue, batch = "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
    queue_size = _positive(given, queue, DEFAULT_QUEUE_SIZE)
    batch_size = _positive(given, batch, min(DEFAULT_BATCH_SIZE, queue_size))
    _positive(given, "OTEL_BSP_EXPORT_TIMEOUT", DEFAULT_METRIC_TIMEOUT_MS)
    if batch_size > queue_size:
        raise TelemetryConfigError(f"{batch}: {batch_size} is more than the queue holds ({queue}: {queue_size})")
    return BatchSettings(queue_size, batch_size, _positive(given, "OTEL_BSP_SCHEDULE_DELAY", DEFAULT_SCHEDULE_DELAY_MS))


def _check_exporter_variables(given: Mapping[str, str]) -> None:
    """The exporters read these themselves, and some of them would only log that they do not understand."""
    for name in (ENDPOINT, TRACES_ENDPOINT, METRICS_ENDPOINT):
        if name in given:
            _check_endpoint(name, given[name])
    for name in PROTOCOLS:
        _one_of(given, name, ("grpc",), "grpc")
    for name in COMPRESSIONS:
        _one_of(given, name, ("gzip",), "gzip")
    for name in EXPORT_TIMEOUTS:
        if name in given:
            _positive_number(name, given[name])
    for item in given.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        if item.strip() and not (item.partition("=")[0].strip() and "=" in item):
            raise TelemetryConfigError(f"OTEL_RESOURCE_ATTRIBUTES: {item!r} is not name=value")


def _check_endpoint(name: str, text: str) -> None:
    try:
        url = urlsplit(text)
        known = url.scheme in {"http", "https"} and bool(url.hostname) and url.path in {"", "/"}
        known = known and (url.port is None or url.port > 0)
    except ValueError:
        known = False
    if not known:
        raise TelemetryConfigError(f"{name}: {text!r} is not an address like http://127.0.0.1:4317")


def _boolean(given: Mapping[str, str], name: str) -> bool:
    return _one_of(given, name, ("true", "false"), "false") == "true"


def _one_of(given: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = given.get(name, default).lower()
    if value not in allowed:
        what = "is not" if len(allowed) == 1 else "is none of"
        raise TelemetryConfigError(f"{name}: {given[name]!r} {what} {', '.join(allowed)}")
    return value


def _ratio(given: Mapping[str, str], sampler: str) -> float:
    name = "OTEL_TRACES_SAMPLER_ARG"
    if sampler not in RATIO_SAMPLERS or name not in given:
        return 1.0
    try:
        ratio = float(given[name])
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise TelemetryConfigError(f"{name}: {given[name]!r} is not a number from 0 to 1")
    return ratio


def _positive(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise TelemetryConfigError(f"{name}: {text!r} is not a whole number above 0")
    return int(text)


def _positive_number(name: str, text: str) -> None:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise TelemetryConfigError(f"{name}: {text!r} is not a number of seconds above 0")


def _port(given: Mapping[str, str]) -> int:
    text = given.get(PROMETHEUS_PORT, str(DEFAULT_PROMETHEUS_PORT))
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise TelemetryConfigError(f"{PROMETHEUS_PORT}: {text!r} is not a port from 0 to 65535")
    return int(text)

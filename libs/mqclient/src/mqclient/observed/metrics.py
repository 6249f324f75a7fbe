"""What clients measure, after OpenTelemetry's conventions for messaging."""

from __future__ import annotations

import threading
from functools import cache, lru_cache

from opentelemetry.metrics import CallbackOptions, Meter, Observation

import telemetry
from mqclient.observed.spans import error_type
from telemetry import names

# Upper bounds of the classes in seconds: those of the conventions, and smaller ones, because a broker is often nearer.
DURATION_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

# What one series is of: operation and its type, topic, consumer group or "", error.type or "".
Series = tuple[str, str, str, str, str]


class ClientMetrics:
    """The instruments under one meter."""

    def __init__(self, meter: Meter) -> None:
        self._operations = meter.create_histogram(
            names.CLIENT_OPERATION_DURATION,
            "s",
            "Duration of messaging operation initiated by a producer or consumer client",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S,
        )
        self._sent = _Totals(
            meter, names.CLIENT_SENT_MESSAGES, "{message}", "Messages that producers attempted to send"
        )
        self._consumed = _Totals(
            meter, names.CLIENT_CONSUMED_MESSAGES, "{message}", "Messages that were delivered to the application"
        )
        self._processing = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "Duration of processing operation",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S,
        )

    def sent(self, topic: str, messages: int, seconds: float, error: BaseException | None) -> None:
        """One call of a producer has ended."""
        series = ("send", names.OPERATION_SEND, topic, "", "" if error is None else error_type(error))
        self._sent.add(series, messages)
        self._operations.record(seconds, _attributes(series))

    def received(self, topic: str, group: str, messages: int, seconds: float) -> None:
        """A pull has found messages."""
        series = ("receive", names.OPERATION_RECEIVE, topic, group, "")
        self._consumed.add(series, messages)
        self._operations.record(seconds, _attributes(series))

    def processed(self, topic: str, group: str, messages: int, seconds: float, failure: str) -> None:
        """One call of a listener has ended; `failure` is its error.type, or empty."""
        series = ("process", names.OPERATION_PROCESS, topic, group, failure)
        self._consumed.add(series, messages)
        self._processing.record(seconds, _attributes(series))


class _Totals:
    """A counter that is read when somebody collects: adding to it costs a twentieth of OpenTelemetry's own."""

    def __init__(self, meter: Meter, name: str, unit: str, description: str) -> None:
        self._lock = threading.Lock()
        self._totals: dict[Series, int] = {}
        meter.create_observable_counter(name, [self._observe], unit, description)

    def add(self, series: Series, count: int) -> None:
        with self._lock:
            self._totals[series] = self._totals.get(series, 0) + count

    def _observe(self, _: CallbackOptions) -> list[Observation]:
        with self._lock:
            return [Observation(total, _attributes(series)) for series, total in self._totals.items()]


@cache
def client_metrics() -> ClientMetrics:
    """Those of this process."""
    return ClientMetrics(telemetry.meter("mqclient"))


@lru_cache(maxsize=4_096)
def _attributes(series: Series) -> dict[str, str]:
    """As the conventions name them; nobody may change them."""
    operation, kind, topic, group, error = series
    attributes = {
        names.SYSTEM: names.SYSTEM_VALUE,
        names.OPERATION_NAME: operation,
        names.OPERATION_TYPE: kind,
        names.DESTINATION_NAME: topic,
    }
    if group:
        attributes[names.CONSUMER_GROUP_NAME] = group
    if error:
        attributes[names.ERROR_TYPE] = error
    return attributes

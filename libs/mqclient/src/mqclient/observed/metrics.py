"""What clients measure, after OpenTelemetry's conventions for messaging."""

from __future__ import annotations

from functools import cache

from opentelemetry.metrics import Meter

import telemetry
from mqclient.observed.spans import error_type
from telemetry import names

# Upper bounds of the classes in seconds: those of the conventions, and smaller ones, because a broker is often nearer.
DURATION_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

Attributes = dict[str, str]


class ClientMetrics:
    """The instruments under one meter."""

    def __init__(self, meter: Meter) -> None:
        self._operations = meter.create_histogram(
            names.CLIENT_OPERATION_DURATION,
            "s",
            "Duration of messaging operation initiated by a producer or consumer client",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S,
        )
        self._sent = meter.create_counter(
            names.CLIENT_SENT_MESSAGES, "{message}", "Messages that producers attempted to send"
        )
        self._consumed = meter.create_counter(
            names.CLIENT_CONSUMED_MESSAGES, "{message}", "Messages that were delivered to the application"
        )
        self._processing = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "Duration of processing operation",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S,
        )

    def sent(self, topic: str, messages: int, seconds: float, error: BaseException | None) -> None:
        """One call of a producer has ended."""
        attributes = _attributes("send", names.OPERATION_SEND, topic)
        if error is not None:
            attributes[names.ERROR_TYPE] = error_type(error)
        self._sent.add(messages, attributes)
        self._operations.record(seconds, attributes)

    def received(self, topic: str, group: str, messages: int, seconds: float) -> None:
        """A pull has found messages."""
        attributes = _attributes("receive", names.OPERATION_RECEIVE, topic)
        attributes[names.CONSUMER_GROUP_NAME] = group
        self._consumed.add(messages, attributes)
        self._operations.record(seconds, attributes)

    def processed(self, topic: str, group: str, messages: int, seconds: float, failure: str) -> None:
        """One call of a listener has ended; `failure` is its error.type, or empty."""
        attributes = _attributes("process", names.OPERATION_PROCESS, topic)
        attributes[names.CONSUMER_GROUP_NAME] = group
        if failure:
            attributes[names.ERROR_TYPE] = failure
        self._consumed.add(messages, attributes)
        self._processing.record(seconds, attributes)


@cache
def client_metrics() -> ClientMetrics:
    """Those of this process."""
    return ClientMetrics(telemetry.meter("mqclient"))


def _attributes(operation: str, kind: str, topic: str) -> Attributes:
    return {
        names.SYSTEM: names.SYSTEM_VALUE,
        names.OPERATION_NAME: operation,
        names.OPERATION_TYPE: kind,
        names.DESTINATION_NAME: topic,
    }

"""Spans and measurements as they arrive at the other end: what tests look at, and what a trace is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# A value of an attribute, as OTLP has it.
Value = str | bool | int | float | bytes | list["Value"] | dict[str, "Value"] | None

KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")  # by OTLP's number
STATUSES = ("UNSET", "OK", "ERROR")


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """Something that happened within a span; `time_ns` since 1970."""

    name: str
    time_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span. Ids are lower-case hex, `parent_span_id` is empty for a root; times in ns since 1970.

    `links` are pairs of trace id and span id; `kind` is one of KINDS and `status` one of STATUSES.
    """

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_span_id: str
    links: list[tuple[str, str]]
    attributes: dict[str, Value]
    events: list[ReceivedEvent]
    start_ns: int
    end_ns: int
    status: str
    status_message: str = ""
    scope: str = ""
    resource: dict[str, Value] = field(default_factory=dict)

    @property
    def duration_ms(self) -> float:
        """From start to end."""
        return (self.end_ns - self.start_ns) / 1e6


@dataclass(frozen=True, slots=True)
class ReceivedMetric:
    """One point of a metric. `value` is that of a gauge or a sum; of a histogram the sum, of `count` values."""

    service: str
    name: str
    unit: str
    kind: str  # gauge, sum or histogram
    attributes: dict[str, Value]
    value: float
    count: int
    time_ns: int

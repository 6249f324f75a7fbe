"""Query progress as OpenTelemetry metrics, on a page for Prometheus or over OTLP, as telemetry's variables ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from analytics.pipeline.stream import Batch
from telemetry import names

METER_NAME = "analytics"

Points = Callable[[Batch], Iterable[tuple[float, dict[str, str]]]]


def _single(read: Callable[[Batch], float]) -> Points:
    return lambda batch: [(read(batch), {})]


def _by_topic(read: Callable[[Batch], Iterable[tuple[str, int]]]) -> Points:
    return lambda batch: [(value, {names.DESTINATION_NAME: topic}) for topic, value in read(batch)]


# Name, unit, description, reading. Prometheus and a collector have to give the same names, so rates have no unit.
GAUGES: tuple[tuple[str, str, str, Points], ...] = (
    (
        "hourglass.pipeline.input.rate",
        "",
        "Messages a second that have come to the queue since the batch before",
        _single(lambda batch: batch.input_rows_per_s),
    ),
    (
        "hourglass.pipeline.processed.rate",
        "",
        "Messages a second of the last batch while it was worked on",
        _single(lambda batch: batch.processed_rows_per_s),
    ),
    (
        "hourglass.pipeline.batch.duration",
        "s",
        "How long the last batch took",
        _single(lambda batch: batch.duration_ms / 1000),
    ),
    ("hourglass.pipeline.batch.number", "", "The last batch", _single(lambda batch: batch.number)),
    (
        "hourglass.pipeline.lag",
        "{message}",
        "Messages of the topic that have not been read",
        _by_topic(lambda batch: batch.lag.items()),
    ),
    (
        "hourglass.pipeline.offset",
        "{message}",
        "Offset up to which the topic has been read, summed over its queues",
        _by_topic(lambda batch: batch.read_until.items()),
    ),
)


class PipelineMetrics:
    """The instruments, under `meter` or the process's own. They tell of the last batch of `tell`, before it of none."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or metrics.get_meter(METER_NAME)
        self._last: Batch | None = None
        for name, unit, description, read in GAUGES:
            meter.create_observable_gauge(name, [self._observing(read)], unit, description)
        self._rows = meter.create_counter("hourglass.pipeline.messages", "{message}", "Messages written to bronze")
        self._batches = meter.create_counter("hourglass.pipeline.batches", "{batch}", "Batches with messages")

    def tell(self, batch: Batch) -> None:
        """The last batch is this one; one without rows tells of rates and lag only."""
        self._last = batch
        if batch.rows:
            self._rows.add(batch.rows)
            self._batches.add(1)

    def _observing(self, read: Points) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            last = self._last
            return [] if last is None else [Observation(value, attributes) for value, attributes in read(last)]

        return observe

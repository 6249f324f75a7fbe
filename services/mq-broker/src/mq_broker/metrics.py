"""What the broker's store tells a metrics collector, as OpenTelemetry observable instruments.

Read when a collector asks, so they cost nothing otherwise; without a configured meter provider nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from mq_broker.processor.broker import Broker

METER_NAME = "mq_broker"

Read = Callable[[Broker], float]

GAUGES: tuple[tuple[str, str, str, Read], ...] = (
    ("hourglass.store.log.begin", "By", "Offset of the commit log's first byte", lambda b: b.store.log_begin),
    ("hourglass.store.log.end", "By", "Offset behind the commit log's last record", lambda b: b.store.log_end),
    ("hourglass.store.log.durable", "By", "Synced up to this offset", lambda b: b.store.flusher.durable_end),
    ("hourglass.store.log.readable", "By", "The confirm offset", lambda b: b.store.readable_end),
    ("hourglass.store.index.end", "By", "Indexed up to this offset", lambda b: b.store.index.indexed_end),
    ("hourglass.store.disk.used", "1", "Used share of the disk", lambda b: b.store.gate.used_share),
    ("hourglass.store.writes.refused", "1", "1 while writes are refused", lambda b: b.store.gate.refusal is not None),
    ("hourglass.store.fenced", "1", "1 after a sync has failed", lambda b: b.store.failure is not None),
    ("hourglass.store.damage.size", "By", "Bytes of the log found damaged", lambda b: b.store.quarantine.size),
    ("hourglass.store.damage.stretches", "{stretch}", "Damaged stretches", lambda b: len(b.store.quarantine)),
)
COUNTERS: tuple[tuple[str, str, str, Read], ...] = (
    ("hourglass.store.messages.put", "{message}", "Messages stored", lambda b: b.store.messages_put),
    ("hourglass.store.files.deleted", "{file}", "Files deleted by the cleaner", lambda b: b.retention.files_deleted),
    ("hourglass.store.messages.carried", "{message}", "Messages written again", lambda b: b.retention.carried),
)


# Upper bounds of the classes, in seconds: from what a delivery takes to what somebody notices.
LATENESS_BOUNDS_S = (0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)


def register(broker: Broker, meter: Meter | None = None) -> None:
    """Offer the store's numbers under `meter`, or the process's own. The broker has to be open."""
    meter = meter or metrics.get_meter(METER_NAME)
    attributes = {"hourglass.broker.name": broker.options.identity.broker_name}

    def callback(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [Observation(float(read(broker)), attributes)]

    for name, unit, description, read in GAUGES:
        meter.create_observable_gauge(name, [callback(read)], unit, description)
    for name, unit, description, read in COUNTERS:
        meter.create_observable_counter(name, [callback(read)], unit, description)
    _register_delays(broker, meter, attributes)


def _register_delays(broker: Broker, meter: Meter, attributes: dict[str, str]) -> None:
    """What waits and how late it is delivered, by delay level; -1 is the timer."""
    lateness = meter.create_histogram(
        "hourglass.delay.lateness",
        "s",
        "Delivered minus due",
        explicit_bucket_boundaries_advisory=LATENESS_BOUNDS_S,
    )

    def of(level: int) -> dict[str, str | int]:
        return {**attributes, "hourglass.delay.level": level}

    def delivered(level: int, lateness_ms: Sequence[int]) -> None:
        for value in lateness_ms:
            lateness.record(value / 1000, of(level))

    def waiting(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(queue.waiting, of(queue.level)) for queue in broker.delay.queues]

    broker.delay.delivery.on_delivered(delivered)
    meter.create_observable_gauge("hourglass.delay.waiting", [waiting], "{message}", "Messages that wait")

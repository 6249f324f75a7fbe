"""The instruments of the process, and the broker that they tell of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from mq_broker.metrics import consumers, delays, replication, store, traffic, transactions
from mq_broker.metrics.instruments import WAIT_BOUNDS_S, Attributes, Reading
from mq_broker.processor.broker import Broker
from telemetry import names

METER_NAME = "mq_broker"

GAUGES = (
    *store.GAUGES,
    *replication.GAUGES,
    *delays.GAUGES,
    *traffic.GAUGES,
    *consumers.GAUGES,
    *transactions.GAUGES,
)
COUNTERS = (*store.COUNTERS, *traffic.COUNTERS, *consumers.COUNTERS, *transactions.COUNTERS)


class BrokerMetrics:
    """The instruments, under `meter` or the process's own. They tell of the broker of `showing`, else nothing."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or metrics.get_meter(METER_NAME)
        self._broker: Broker | None = None
        for one in GAUGES:
            meter.create_observable_gauge(one.name, [self._observing(one.read)], one.unit, one.description)
        for one in COUNTERS:
            meter.create_observable_counter(one.name, [self._observing(one.read)], one.unit, one.description)
        self._lateness = meter.create_histogram(
            "hourglass.delay.lateness",
            "s",
            "Delivered minus due",
            explicit_bucket_boundaries_advisory=delays.LATENESS_BOUNDS_S,
        )
        self._flush = meter.create_histogram(
            "hourglass.store.flush.duration",
            "s",
            "One sync of the commit log",
            explicit_bucket_boundaries_advisory=WAIT_BOUNDS_S,
        )
        self._ack = meter.create_histogram(
            "hourglass.replication.ack.duration",
            "s",
            "The longest wait for the in-sync slaves that a confirmation has ended",
            explicit_bucket_boundaries_advisory=WAIT_BOUNDS_S,
        )

    @contextmanager
    def showing(self, broker: Broker) -> Iterator[None]:
        """Tell of this broker, which has to be open for as long as the block runs."""
        self._broker, own = broker, _of(broker)
        broker.store.flusher.on_flushed = lambda seconds: self._flush.record(seconds, own)
        broker.store.confirmation.on_answered = lambda seconds: self._ack.record(seconds, own)
        broker.delay.delivery.on_delivered(lambda level, late_ms: self._delivered(own, level, late_ms))
        try:
            yield
        finally:
            self._broker = None

    def _delivered(self, own: Attributes, level: int, lateness_ms: Sequence[int]) -> None:
        attributes = own | delays.of_level(level)
        for value in lateness_ms:
            self._lateness.record(value / 1000, attributes)

    def _observing(self, read: Reading) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            broker = self._broker
            if broker is None:
                return []
            own = _of(broker)
            return [Observation(float(value), own | attributes) for value, attributes in read(broker)]

        return observe


def _of(broker: Broker) -> Attributes:
    return {names.BROKER_NAME: broker.options.identity.broker_name}

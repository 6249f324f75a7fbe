"""What the broker tells a metrics collector of its store and its replication, as OpenTelemetry observable instruments.

Read when a collector asks, so they cost nothing otherwise; without a configured meter provider nobody asks. The
instruments are the process's: a broker that is closed and opened anew in another role is observed by the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from mq_broker.core.replication.roles import BrokerRole
from mq_broker.core.replication.status import HaStatus, ReplicaStatus
from mq_broker.processor.broker import Broker

METER_NAME = "mq_broker"

Read = Callable[[Broker], float]
Attributes = dict[str, str | int]

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
REPLICATION_GAUGES: tuple[tuple[str, str, str, Callable[[HaStatus], float]], ...] = (
    ("hourglass.replication.writable", "1", "1 while clients may write", lambda s: s.writable),
    ("hourglass.replication.epoch.term", "1", "The epoch's term: one per change of masters", lambda s: s.epoch.term),
    ("hourglass.replication.epoch.start", "1", "The epoch's start, within the term", lambda s: s.epoch.start),
    ("hourglass.replication.in_sync.replicas", "{replica}", "In sync, with the master", lambda s: s.in_sync_replicas),
    ("hourglass.replication.in_sync", "1", "1 while this broker is in the in-sync set", lambda s: s.in_sync),
    ("hourglass.replication.connected", "1", "1 while a slave hears from its master", lambda s: s.connected),
    ("hourglass.replication.lag.size", "By", "How far a slave is behind, as it has heard", lambda s: s.lag_bytes),
    ("hourglass.replication.lag.time", "s", "How long ago a slave had everything", lambda s: s.lag_s),
)
# Of a master's slaves, each with its own attributes.
REPLICA_GAUGES: tuple[tuple[str, str, str, Callable[[ReplicaStatus], float]], ...] = (
    ("hourglass.replication.slave.connected", "1", "1 while the slave is connected", lambda s: s.connected),
    ("hourglass.replication.slave.in_sync", "1", "1 while the slave is in the in-sync set", lambda s: s.in_sync),
    ("hourglass.replication.slave.lag.size", "By", "How far the slave is behind", lambda s: s.lag_bytes),
    ("hourglass.replication.slave.lag.time", "s", "How long ago the slave had everything", lambda s: s.lag_s),
)
ROLE_GAUGE = "hourglass.replication.role"
WAITING_GAUGE = "hourglass.delay.waiting"

# Upper bounds of the classes, in seconds: from what a delivery takes to what somebody notices.
LATENESS_BOUNDS_S = (0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)


class BrokerMetrics:
    """The instruments, under `meter` or the process's own. They tell of the broker of `showing`, else nothing."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or metrics.get_meter(METER_NAME)
        self._broker: Broker | None = None
        for name, unit, description, read in GAUGES:
            meter.create_observable_gauge(name, [self._reading(read)], unit, description)
        for name, unit, description, read in COUNTERS:
            meter.create_observable_counter(name, [self._reading(read)], unit, description)
        for name, unit, description, read_status in REPLICATION_GAUGES:
            reading = self._reading(lambda broker, read=read_status: read(broker.replication.status()))  # type: ignore[misc]
            meter.create_observable_gauge(name, [reading], unit, description)
        for name, unit, description, read_replica in REPLICA_GAUGES:
            meter.create_observable_gauge(name, [self._reading_replicas(read_replica)], unit, description)
        meter.create_observable_gauge(ROLE_GAUGE, [self._roles], "1", "1 for the role that the broker has")
        # What waits and how late it is delivered, by delay level; -1 is the timer.
        meter.create_observable_gauge(WAITING_GAUGE, [self._waiting], "{message}", "Messages that wait")
        self._lateness = meter.create_histogram(
            "hourglass.delay.lateness",
            "s",
            "Delivered minus due",
            explicit_bucket_boundaries_advisory=LATENESS_BOUNDS_S,
        )

    @contextmanager
    def showing(self, broker: Broker) -> Iterator[None]:
        """Tell of this broker, which has to be open for as long as the block runs."""
        self._broker = broker
        broker.delay.delivery.on_delivered(lambda level, late_ms: self._delivered(broker, level, late_ms))
        try:
            yield
        finally:
            self._broker = None

    def _delivered(self, broker: Broker, level: int, lateness_ms: Sequence[int]) -> None:
        for value in lateness_ms:
            self._lateness.record(value / 1000, _of_level(broker, level))

    def _reading(self, read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            if self._broker is not None:
                yield Observation(float(read(self._broker)), _of(self._broker))

        return observe

    def _reading_replicas(
        self, read: Callable[[ReplicaStatus], float]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            if self._broker is not None:
                for replica in self._broker.replication.status().replicas:
                    yield Observation(float(read(replica)), _of_replica(self._broker, replica))

        return observe

    def _roles(self, _: CallbackOptions) -> Iterable[Observation]:
        if self._broker is not None:
            now = self._broker.replication.role
            for role in BrokerRole:
                yield Observation(int(role is now), {**_of(self._broker), "hourglass.replication.role": role.name})

    def _waiting(self, _: CallbackOptions) -> Iterable[Observation]:
        if self._broker is not None:
            for queue in self._broker.delay.queues:
                yield Observation(queue.waiting, _of_level(self._broker, queue.level))


def _of(broker: Broker) -> Attributes:
    return {"hourglass.broker.name": broker.options.identity.broker_name}


def _of_level(broker: Broker, level: int) -> Attributes:
    return {**_of(broker), "hourglass.delay.level": level}


def _of_replica(broker: Broker, replica: ReplicaStatus) -> Attributes:
    return {
        **_of(broker),
        "hourglass.replication.slave.id": replica.broker_id,
        "hourglass.replication.slave.replica": replica.replica_id,
    }

"""The broker's metrics and spans, by OpenTelemetry.

Metrics are read when a collector asks, so the observed ones cost nothing otherwise; without a configured meter provider
they are never read. What is counted on the way of a message is counted in plain numbers. The instruments are the
process's: a broker that is closed and opened anew in another role is observed by the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import SpanKind, Tracer

import telemetry
from mq_broker.core.life import NO_SPANS, Operation, Spans, Step, Subject
from mq_broker.core.replica_state import BrokerRole, HaStatus, ReplicaStatus
from mq_broker.core.transactions import TransactionTable
from mq_broker.processor.broker import Broker
from telemetry import names
from telemetry.context import span_context_of

METER_NAME = "mq_broker"


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
            explicit_bucket_boundaries_advisory=LATENESS_BOUNDS_S,
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
            "The longest wait for the in-sync replicas that a confirmation has ended",
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
        attributes = own | of_level(level)
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


Attributes = dict[str, str | int]
Point = tuple[float, Attributes]
Reading = Callable[[Broker], Iterable[Point]]

NO_UNIT = ""
# Upper bounds of classes for the waits of producers, in seconds.
WAIT_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True, slots=True)
class Instrument:
    """What an instrument of the broker is: a name, and a reading of the broker that gives its points.

    Each point gets the broker's name as well.

    Readings are called by the exporter's own thread, beside the event loop: they take counts and copies, and go through
    no table while the loop may change it.

    Units: the process's page for Prometheus and a collector's have to give the same names, so shares and flags have
    none.
    """

    name: str
    unit: str
    description: str
    read: Reading


def single(name: str, unit: str, description: str, read: Callable[[Broker], float]) -> Instrument:
    """One that has one point."""
    return Instrument(name, unit, description, lambda broker: [(read(broker), {})])


# How far consumer groups are behind, and what they have given up.


def _lag(broker: Broker) -> Iterable[Point]:
    """By group and topic, over the queues in which the group has begun; a replica leaves it to its master to tell."""
    if broker.store.follows:
        return []
    lags = Counter[tuple[str, str]]()
    for group, topic, queue_id, progress in broker.consumer_offsets.snapshot():
        first, end = broker.store.queue_bounds(topic, queue_id)
        lags[group, topic] += max(0, end - max(first, progress.offset) - progress.finished_beyond)
    return [
        (lag, {names.CONSUMER_GROUP_NAME: group, names.DESTINATION_NAME: topic}) for (group, topic), lag in lags.items()
    ]


def _dead_letters(broker: Broker) -> Iterable[Point]:
    counts = broker.send_back.dead_letters.copy()
    return [(count, {names.CONSUMER_GROUP_NAME: group}) for group, count in counts.items()]


CONSUMERS_GAUGES = (Instrument("hourglass.consumer.lag", "{message}", "Messages that a group has not finished", _lag),)
CONSUMERS_COUNTERS = (
    Instrument("hourglass.dead_letters", "{message}", "Messages that a group has given up", _dead_letters),
)


# Messages that wait, by delay level; -1 is the timer.

# Upper bounds of the classes, in seconds: from a delivery in time to a noticeable delay.
LATENESS_BOUNDS_S = (0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)


def of_level(level: int) -> Attributes:
    """The attributes of what a level has."""
    return {"hourglass.delay.level": level}


def _waiting(broker: Broker) -> Iterable[Point]:
    return [(queue.waiting, of_level(queue.level)) for queue in broker.delay.queues]


DELAYS_GAUGES = (Instrument("hourglass.delay.waiting", "{message}", "Messages that wait", _waiting),)


# Replication: the broker's role and epoch, how far it is behind, and how far its replicas are.

ROLE = "hourglass.replication.role"


def _own(name: str, unit: str, description: str, read: Callable[[HaStatus], float]) -> Instrument:
    return single(name, unit, description, lambda broker: read(broker.replication.status()))


def _of_replicas(name: str, unit: str, description: str, read: Callable[[ReplicaStatus], float]) -> Instrument:
    def points(broker: Broker) -> Iterable[Point]:
        for replica in broker.replication.status().replicas:
            yield (
                read(replica),
                {
                    "hourglass.replication.slave.id": replica.broker_id,
                    "hourglass.replication.slave.replica": replica.replica_id,
                },
            )

    return Instrument(name, unit, description, points)


def _roles(broker: Broker) -> Iterable[Point]:
    now = broker.replication.role
    return [(int(role is now), {ROLE: role.name}) for role in BrokerRole]


OWN_GAUGES = (
    _own("hourglass.replication.writable", NO_UNIT, "1 while clients may write", lambda s: s.writable),
    _own(
        "hourglass.replication.epoch.term",
        NO_UNIT,
        "The epoch's term: one per change of masters",
        lambda s: s.epoch.term,
    ),
    _own("hourglass.replication.epoch.start", NO_UNIT, "The epoch's start, within the term", lambda s: s.epoch.start),
    _own(
        "hourglass.replication.in_sync.replicas", "{replica}", "In sync, the master too", lambda s: s.in_sync_replicas
    ),
    _own("hourglass.replication.in_sync", NO_UNIT, "1 while it is in the in-sync set", lambda s: s.in_sync),
    _own("hourglass.replication.connected", NO_UNIT, "1 while a replica hears from its master", lambda s: s.connected),
    _own("hourglass.replication.lag.size", "By", "How far a replica is behind, as it has heard", lambda s: s.lag_bytes),
    _own("hourglass.replication.lag.time", "s", "How long ago a replica had everything", lambda s: s.lag_seconds),
    _own(
        "hourglass.replication.clock.ahead",
        "s",
        "How far a replica's wall clock is ahead of its master's",
        lambda s: s.clock_ahead_ms / 1_000,
    ),
)
# Of a master's replicas, each with its own attributes.
REPLICA_GAUGES = (
    _of_replicas("hourglass.replication.slave.connected", NO_UNIT, "1 while it is connected", lambda s: s.connected),
    _of_replicas("hourglass.replication.slave.in_sync", NO_UNIT, "1 while it is in sync", lambda s: s.in_sync),
    _of_replicas("hourglass.replication.slave.lag.size", "By", "How far it is behind", lambda s: s.lag_bytes),
    _of_replicas(
        "hourglass.replication.slave.lag.time", "s", "How long ago it had everything", lambda s: s.lag_seconds
    ),
    _of_replicas(
        "hourglass.replication.slave.clock.ahead",
        "s",
        "How far its wall clock is ahead of the master's",
        lambda s: s.clock_ahead_ms / 1_000,
    ),
)
REPLICATION_GAUGES = (
    *OWN_GAUGES,
    *REPLICA_GAUGES,
    Instrument(ROLE, NO_UNIT, "1 for the role that the broker has", _roles),
)


# The store: its log, its disk, and what is damaged.

STORE_GAUGES = (
    single("hourglass.store.log.begin", "By", "Offset of the commit log's first byte", lambda b: b.store.log_begin),
    single("hourglass.store.log.end", "By", "Offset behind the commit log's last record", lambda b: b.store.log_end),
    single("hourglass.store.log.durable", "By", "Synced up to this offset", lambda b: b.store.flusher.durable_end),
    single("hourglass.store.log.readable", "By", "The confirm offset", lambda b: b.store.readable_end),
    single("hourglass.store.size", "By", "The commit log's bytes", lambda b: b.store.log_end - b.store.log_begin),
    single("hourglass.store.index.end", "By", "Indexed up to this offset", lambda b: b.store.index.indexed_end),
    single("hourglass.store.disk.used", NO_UNIT, "Used share of the disk", lambda b: b.store.gate.used_share),
    single(
        "hourglass.store.writes.refused",
        NO_UNIT,
        "1 while writes are rejected",
        lambda b: b.store.gate.rejection is not None,
    ),
    single("hourglass.store.fenced", NO_UNIT, "1 after a sync has failed", lambda b: b.store.failure is not None),
    single("hourglass.store.damage.size", "By", "Bytes of the log found damaged", lambda b: b.store.quarantine.size),
    single("hourglass.store.damage.stretches", "{stretch}", "Damaged stretches", lambda b: len(b.store.quarantine)),
)
STORE_COUNTERS = (
    single("hourglass.store.messages.put", "{message}", "Messages stored", lambda b: b.store.messages_put),
    single("hourglass.store.files.deleted", "{file}", "Files the cleaner deleted", lambda b: b.retention.files_deleted),
    single("hourglass.store.messages.carried", "{message}", "Messages written again", lambda b: b.retention.carried),
)


# What clients send and get, and how many there are.


def _from(topic: str) -> Attributes:
    return {names.DESTINATION_NAME: topic}


def _to(place: tuple[str, str]) -> Attributes:
    topic, group = place
    return {names.DESTINATION_NAME: topic, names.CONSUMER_GROUP_NAME: group}


def _messages_in(broker: Broker) -> Iterable[Point]:
    return [(one.messages, _from(topic)) for topic, one in broker.producing.received.all()]


def _bytes_in(broker: Broker) -> Iterable[Point]:
    return [(one.bytes, _from(topic)) for topic, one in broker.producing.received.all()]


def _messages_out(broker: Broker) -> Iterable[Point]:
    return [(one.messages, _to(place)) for place, one in broker.pulling.given.all()]


def _bytes_out(broker: Broker) -> Iterable[Point]:
    return [(one.bytes, _to(place)) for place, one in broker.pulling.given.all()]


TRAFFIC_GAUGES = (
    single("hourglass.broker.polls.held", "{poll}", "Long polls that wait", lambda b: b.long_polling.held),
    single("hourglass.broker.clients", "{client}", "Clients with a session", lambda b: b.sessions.members.client_count),
)
# In: what producers have sent and the broker has stored, by the topic that they have sent it to. Out: what was pulled.
TRAFFIC_COUNTERS = (
    Instrument("hourglass.broker.messages.in", "{message}", "Messages that producers sent", _messages_in),
    Instrument("hourglass.broker.bytes.in", NO_UNIT, "Bytes of messages that producers sent", _bytes_in),
    Instrument("hourglass.broker.messages.out", "{message}", "Messages that consumers got", _messages_out),
    Instrument("hourglass.broker.bytes.out", NO_UNIT, "Bytes of messages that consumers got", _bytes_out),
)


# Half messages; masters tell of them.


def _of_master(name: str, description: str, count: Callable[[TransactionTable], int]) -> Instrument:
    def points(broker: Broker) -> Iterable[Point]:
        return [] if broker.store.follows else [(count(broker.transaction_table), {})]

    return Instrument(name, "{message}", description, points)


TRANSACTIONS_GAUGES = (
    _of_master("hourglass.transaction.halves", "Half messages of open transactions", lambda table: len(table.open)),
    _of_master("hourglass.transaction.parked", "Those that wait for an operator", lambda table: len(table.in_parking)),
)
TRANSACTIONS_COUNTERS = (
    single("hourglass.transaction.checks", "{check}", "Checks of producers", lambda b: b.transactions.checks.asked),
)

GAUGES = (
    *STORE_GAUGES,
    *REPLICATION_GAUGES,
    *DELAYS_GAUGES,
    *TRAFFIC_GAUGES,
    *CONSUMERS_GAUGES,
    *TRANSACTIONS_GAUGES,
)
COUNTERS = (*STORE_COUNTERS, *TRAFFIC_COUNTERS, *CONSUMERS_COUNTERS, *TRANSACTIONS_COUNTERS)


NANOSECONDS_PER_MS = 1_000_000

SpanAttributes = dict[str, str | int | float]


def broker_spans(broker_name: str) -> Spans:
    """Spans of the broker with this name, if the process records any."""
    return RecordedSpans(broker_name, telemetry.tracer("mq_broker")) if telemetry.is_tracing() else NO_SPANS


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """One that has begun."""

    span: trace.Span
    end_ms: int

    @property
    def span_id(self) -> str:
        return trace.format_span_id(self.span.get_span_context().span_id)

    def end(self) -> None:
        self.span.end(self.end_ms * NANOSECONDS_PER_MS)


class RecordedSpans:
    """Spans of one broker. Their times are those of store timestamps: whole milliseconds of the broker's time."""

    is_on = True

    def __init__(self, broker_name: str, tracer: Tracer) -> None:
        self._broker_name, self._tracer = broker_name, tracer

    def begin(self, step: Step, subject: Subject, traceparent: str) -> RecordedSpan | None:
        context = telemetry.context_of(traceparent)
        if not span_context_of(context).is_valid:
            return None
        span = self._tracer.start_span(
            names.span_name(step.operation.value, subject.topic),
            context,
            SpanKind.INTERNAL,
            self._attributes(step, subject),
            start_time=step.start_ms * NANOSECONDS_PER_MS,
        )
        return RecordedSpan(span, max(step.start_ms, step.end_ms)) if span.is_recording() else None

    def _attributes(self, step: Step, subject: Subject) -> SpanAttributes:
        attributes: SpanAttributes = {
            names.SYSTEM: names.SYSTEM_VALUE,
            names.OPERATION_NAME: step.operation.value,
            names.DESTINATION_NAME: subject.topic,
            names.DESTINATION_PARTITION_ID: str(subject.queue_id),
            names.MESSAGE_ID: subject.message_id,
            names.CONSUMER_GROUP_NAME: subject.consumer_group,
            names.RECONSUME_TIMES: subject.reconsume_times,
            names.BROKER_NAME: self._broker_name,
        }
        if step.operation is Operation.HALF:
            attributes |= {
                names.PRODUCER_GROUP: step.producer_group,
                names.TRANSACTION_CHECKS: step.checks,
                names.TRANSACTION_STATE: step.outcome,
            }
        elif step.operation is Operation.WAIT:
            attributes |= {
                names.MESSAGE_DELIVERY_TIMESTAMP: step.due_ms,
                names.DELAY_LATENESS: (step.end_ms - step.due_ms) / 1000,
            }
            if step.delay_level:
                attributes[names.MESSAGE_DELAY_TIME_LEVEL] = step.delay_level
        return {name: value for name, value in attributes.items() if value != ""}

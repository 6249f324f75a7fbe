"""Replication: the broker's role and epoch, how far it is behind, and how far its slaves are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mq_broker.core.replica_state import BrokerRole, HaStatus, ReplicaStatus
from mq_broker.metrics.instruments import NO_UNIT, Instrument, Point, single
from mq_broker.processor.broker import Broker

ROLE = "hourglass.replication.role"


def _own(name: str, unit: str, description: str, read: Callable[[HaStatus], float]) -> Instrument:
    return single(name, unit, description, lambda broker: read(broker.replication.status()))


def _of_slaves(name: str, unit: str, description: str, read: Callable[[ReplicaStatus], float]) -> Instrument:
    def points(broker: Broker) -> Iterable[Point]:
        for slave in broker.replication.status().replicas:
            yield (
                read(slave),
                {
                    "hourglass.replication.slave.id": slave.broker_id,
                    "hourglass.replication.slave.replica": slave.replica_id,
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
    _own("hourglass.replication.connected", NO_UNIT, "1 while a slave hears from its master", lambda s: s.connected),
    _own("hourglass.replication.lag.size", "By", "How far a slave is behind, as it has heard", lambda s: s.lag_bytes),
    _own("hourglass.replication.lag.time", "s", "How long ago a slave had everything", lambda s: s.lag_s),
    _own(
        "hourglass.replication.clock.ahead",
        "s",
        "How far a slave's wall clock is ahead of its master's",
        lambda s: s.clock_ahead_ms / 1_000,
    ),
)
# Of a master's slaves, each with its own attributes.
SLAVE_GAUGES = (
    _of_slaves("hourglass.replication.slave.connected", NO_UNIT, "1 while it is connected", lambda s: s.connected),
    _of_slaves("hourglass.replication.slave.in_sync", NO_UNIT, "1 while it is in sync", lambda s: s.in_sync),
    _of_slaves("hourglass.replication.slave.lag.size", "By", "How far it is behind", lambda s: s.lag_bytes),
    _of_slaves("hourglass.replication.slave.lag.time", "s", "How long ago it had everything", lambda s: s.lag_s),
    _of_slaves(
        "hourglass.replication.slave.clock.ahead",
        "s",
        "How far its wall clock is ahead of the master's",
        lambda s: s.clock_ahead_ms / 1_000,
    ),
)
GAUGES = (*OWN_GAUGES, *SLAVE_GAUGES, Instrument(ROLE, NO_UNIT, "1 for the role that the broker has", _roles))

"""What a broker says of its replication, for operators and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from mq_broker.core.replication.epochs import Epoch
from mq_broker.core.replication.roles import BrokerRole


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A slave as its master sees it. Offsets and lags are bytes of the log; `lag_s` is how long ago the slave had
    everything, 0.0 while it has; `clock_ahead_ms` is how far its wall clock is ahead of the master's, 0 while unknown.
    """

    replica_id: str
    broker_id: int
    address: str
    connected: bool
    in_sync: bool
    written_offset: int
    durable_offset: int
    acknowledged_offset: int
    lag_bytes: int
    lag_s: float
    clock_ahead_ms: int = 0


@dataclass(frozen=True, slots=True)
class HaStatus:
    """One broker. Of a master, `replicas` are its slaves, and `master_address` its own; of a slave, `connected` says
    whether it hears from its master, `lag_bytes` and `lag_s` how far it is behind, as far as it has heard.

    `writable` is False for a slave, and for a master that has stepped down or was superseded; `reason` says why.
    """

    role: BrokerRole
    writable: bool
    reason: str
    epoch: Epoch
    broker_id: int
    replica_id: str
    log_begin: int
    log_end: int
    durable_end: int
    confirm_offset: int
    min_in_sync_replicas: int
    in_sync_version: int
    in_sync_replicas: int  # with the master
    in_sync: bool
    connected: bool
    master_address: str
    lag_bytes: int
    lag_s: float
    replicas: tuple[ReplicaStatus, ...] = ()
    clock_ahead_ms: int = 0  # of a slave

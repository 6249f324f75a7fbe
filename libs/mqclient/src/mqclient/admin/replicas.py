"""The replication status of brokers, and the calls that change the role of one replica.

A replica that changes its role closes its port and opens it again, so the answer to what it has done may get lost. A
caller that requests a change therefore polls the replica until the change is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import replication_service_pb2 as replication_pb
from mqclient.admin.brokers import ClusterBroker, Target, answer_of
from mqclient.errors import BrokerUnreachableError, MQClientError, NotSentError, OutcomeUnknownError
from mqclient.transport.methods import BECOME_SLAVE, GET_REPLICA_STATUS, PROMOTE, STEP_DOWN
from mqproto.values import to_value
from osenv import Clock

FORMER_MASTER_ID = (1 << 31) - 1  # of a broker that has lost its place as master and was not given another one

LOOK_INTERVAL_S = 0.2
UNSENT = (BrokerUnreachableError, NotSentError)
UNANSWERED = (*UNSENT, OutcomeUnknownError)


class BrokerRole(IntEnum):
    """Which broker writes, and when a message is acknowledged (mechanisms H1, H4), as in admin_service.proto."""

    UNSPECIFIED = 0
    ASYNC_MASTER = 1
    SYNC_MASTER = 2
    SLAVE = 3

    @property
    def is_master(self) -> bool:
        return self in (BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER)


class Epoch(NamedTuple):
    """In which a master writes; compared by term, then by start."""

    term: int
    start: int

    def __str__(self) -> str:
        return f"{self.term}.{self.start}"

    def to_wire(self) -> replication_pb.Epoch:
        return replication_pb.Epoch(term=self.term, start=self.start)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica as its master sees it. Offsets and lags are bytes of the log; `lag_seconds` is how long ago the replica
    had everything, 0.0 while it has; `clock_ahead_ms` is how far its wall clock is ahead of the master's, 0 while
    unknown.
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
    lag_seconds: float
    clock_ahead_ms: int = 0


@dataclass(frozen=True, slots=True)
class HaStatus:
    """One broker process; `address` is where it was asked.

    `writable` is False for a replica, and for a master that has stepped down or was superseded; `reason` says why. Of a
    replica are `in_sync`, `connected` and the lags, as far as it has heard from its master; of a master are `replicas`.
    """

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    replica_id: str
    role: BrokerRole
    writable: bool
    reason: str
    epoch: Epoch
    log_begin: int
    log_end: int
    durable_end: int
    confirm_offset: int
    min_in_sync_replicas: int
    in_sync_version: int
    in_sync_replicas: int  # with the master
    in_sync: bool
    connected: bool
    lag_bytes: int
    lag_seconds: float
    ha_address: str
    master_ha_address: str
    replicas: tuple[ReplicaStatus, ...] = ()
    clock_ahead_ms: int = 0  # of a replica

    @property
    def leads(self) -> bool:
        """Whether it is the master of its name, as far as it knows."""
        return self.role.is_master and self.writable

    @property
    def has_lost_its_place(self) -> bool:
        """Whether it was the master and is not a replica yet: it has stepped down, or was superseded."""
        return not self.leads and (self.role.is_master or self.broker_id == FORMER_MASTER_ID)

    @property
    def progress(self) -> tuple[Epoch, int]:
        """What it has on disk: of two replicas the one with more has everything that the other has."""
        return self.epoch, self.durable_end


@dataclass(frozen=True, slots=True)
class HaAnswer:
    """The answer of one broker process; one of `status` and `error` is None."""

    broker: ClusterBroker
    status: HaStatus | None
    error: MQClientError | None


def ha_status_from_wire(response: admin_pb.GetReplicaStatusResponse, address: str) -> HaStatus:
    """The answer of the broker at this address."""
    return to_value(
        HaStatus,
        response,
        address=address,
        role=BrokerRole(response.role),
        epoch=Epoch(response.epoch.term, response.epoch.start),
        replicas=tuple(to_value(ReplicaStatus, replica) for replica in response.replicas),
    )


class Patience:
    """The deadline of a caller that polls."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + timeout_s

    async def pause(self) -> bool:
        """Wait for the next look; False when the time is over."""
        if self._clock.monotonic() >= self._deadline:
            return False
        await self._clock.sleep(LOOK_INTERVAL_S)
        return True


@dataclass(frozen=True, slots=True)
class HandOver:
    """What a master of `epoch` hands over: where its log ends, the role that it had, and the locks of orderly groups.

    `whole`: it has stepped down, and its log ends there for good. `queue_locks` is for the successor to read; empty
    where the master could not be asked.
    """

    epoch: Epoch
    log_end: int
    role: BrokerRole
    whole: bool = False
    queue_locks: bytes = b""


@dataclass(frozen=True, slots=True)
class ReplicaCalls:
    """Replicas are given by their address. Each call raises MQClientError."""

    target_at: Callable[[str], Target]
    clock: Clock

    async def status(self, address: str) -> HaStatus:
        answer = await answer_of(self.target_at(address), GET_REPLICA_STATUS, admin_pb.GetReplicaStatusRequest())
        return ha_status_from_wire(answer, address)

    async def look(self, address: str) -> HaStatus | None:
        """Its status; None when there is no answer now."""
        try:
            return await self.status(address)
        except MQClientError:
            return None

    async def step_down(self, address: str, epoch: Epoch) -> HandOver:
        """What it hands over to its successor."""
        request = admin_pb.StepDownRequest(epoch=epoch.to_wire())
        answer = await answer_of(self.target_at(address), STEP_DOWN, request)
        return HandOver(epoch, answer.log_end, BrokerRole(answer.role), True, answer.queue_locks)

    async def promote(self, address: str, term: int, left: HandOver) -> None:
        """Make it the master of `term`, if its log has what was left and it has seen that epoch and none above."""
        request = admin_pb.PromoteRequest(
            term=term,
            log_end=left.log_end,
            role=admin_pb.BrokerRole.ValueType(left.role),
            epoch=left.epoch.to_wire(),
            queue_locks=left.queue_locks,
            whole=left.whole,
        )
        await answer_of(self.target_at(address), PROMOTE, request)

    async def become_replica(self, address: str, broker_id: int, master: HaStatus) -> None:
        request = admin_pb.BecomeSlaveRequest(
            broker_id=broker_id, master_ha_address=master.ha_address, epoch=master.epoch.to_wire()
        )
        await answer_of(self.target_at(address), BECOME_SLAVE, request)


class Change:
    """One change of one replica that has been asked for, perhaps more than once."""

    def __init__(self) -> None:
        self.accepted = False
        self.may_have_been_made = False
        self.problem: MQClientError | None = None  # of the last attempt

    def failed(self, error: MQClientError) -> None:
        """Raises a rejection, unless an earlier attempt may be the reason for it."""
        self.problem = error
        if not isinstance(error, UNANSWERED) and not self.may_have_been_made:
            raise error
        if not isinstance(error, UNSENT):
            self.may_have_been_made = True

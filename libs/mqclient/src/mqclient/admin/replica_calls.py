"""The calls by which roles change, to one replica after the other, and patience with replicas that do not answer.

A replica that changes its role closes its port and opens it again, so the answer to what it has done may get lost. Who
asks for a change therefore looks at the replica until the change is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from mqclient.admin.asking import Target, answer_of
from mqclient.admin.ha_status import BrokerRole, Epoch, HaStatus, ha_status_from_wire
from mqclient.errors import BrokerUnreachableError, MQClientError, NotSentError, OutcomeUnknownError
from mqclient.transport.methods import BECOME_SLAVE, GET_REPLICA_STATUS, PROMOTE, STEP_DOWN
from osenv import Clock

LOOK_INTERVAL_S = 0.2
UNSENT = (BrokerUnreachableError, NotSentError)
UNANSWERED = (*UNSENT, OutcomeUnknownError)


class Patience:
    """Until when somebody waits."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + timeout_s

    async def pause(self) -> bool:
        """A moment later; False when the time is over."""
        if self._clock.monotonic() >= self._deadline:
            return False
        await self._clock.sleep(LOOK_INTERVAL_S)
        return True


@dataclass(frozen=True, slots=True)
class HandOver:
    """What a master of `epoch` leaves: where its log ends, the role that it had, and the locks of orderly groups.

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
        """What it leaves to its successor."""
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

    async def become_slave(self, address: str, broker_id: int, master: HaStatus) -> None:
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
        """Raises a refusal, unless an earlier attempt may be the reason for it."""
        self.problem = error
        if not isinstance(error, UNANSWERED) and not self.may_have_been_made:
            raise error
        if not isinstance(error, UNSENT):
            self.may_have_been_made = True

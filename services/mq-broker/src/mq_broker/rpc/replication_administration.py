"""The part of AdminService that is about replication: who writes, how far the slaves are, and a change of masters."""

from __future__ import annotations

from typing import Any

from hourglass.mq.v1 import admin_service_pb2 as pb
from mq_broker.core.refusals import RefusedError
from mq_broker.core.replication.epochs import Epoch
from mq_broker.core.replication.replica_state import FORMER_MASTER_ID
from mq_broker.core.replication.roles import BrokerRole
from mq_broker.core.replication.status import HaStatus, ReplicaStatus
from mq_broker.processor.broker import Broker
from mq_broker.rpc.answers import answering
from mq_broker.rpc.replication_conversions import epoch_message, epoch_of
from mqproto.codes import ResponseCode
from mqproto.names import parse_address

_ROLES = {
    BrokerRole.ASYNC_MASTER: pb.ASYNC_MASTER,
    BrokerRole.SYNC_MASTER: pb.SYNC_MASTER,
    BrokerRole.SLAVE: pb.SLAVE,
}


class ReplicationAdministration:
    """RPCs of `hourglass.mq.v1.AdminService`."""

    _broker: Broker

    async def GetReplicaStatus(  # noqa: N802
        self, request: pb.GetReplicaStatusRequest, context: Any
    ) -> pb.GetReplicaStatusResponse:
        broker = self._broker
        response = replica_status_response(broker.replication.status())
        response.cluster_name = broker.identity.cluster_name
        response.broker_name = broker.identity.broker_name
        response.address = broker.identity.address
        response.ha_address = broker.options.replication.ha_address
        return response

    @answering(pb.StepDownResponse)
    async def StepDown(self, request: pb.StepDownRequest, context: Any) -> pb.StepDownResponse:  # noqa: N802
        log_end, role = await self._broker.replication.step_down(_epoch(request.epoch))
        locks = self._broker.queue_locking.handed_over()
        return pb.StepDownResponse(log_end=log_end, role=_ROLES[role], queue_locks=locks)

    @answering(pb.PromoteResponse)
    async def Promote(self, request: pb.PromoteRequest, context: Any) -> pb.PromoteResponse:  # noqa: N802
        role, epoch = _role(request.role), _epoch(request.epoch)
        await self._broker.replication.promote(
            request.term, request.log_end, role, epoch, whole=request.whole, queue_locks=request.queue_locks
        )
        return pb.PromoteResponse()

    @answering(pb.BecomeSlaveResponse)
    async def BecomeSlave(self, request: pb.BecomeSlaveRequest, context: Any) -> pb.BecomeSlaveResponse:  # noqa: N802
        if not 0 < request.broker_id < FORMER_MASTER_ID:
            sentence = f"{request.broker_id} is no id of a slave; allowed are 1 to {FORMER_MASTER_ID - 1}"
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
        if request.master_ha_address:
            _check_address(request.master_ha_address)
        epoch = _epoch(request.epoch)
        await self._broker.replication.become_slave(request.broker_id, request.master_ha_address, epoch)
        return pb.BecomeSlaveResponse()


def replica_status_response(status: HaStatus) -> pb.GetReplicaStatusResponse:
    """What the status says, without what only the broker knows: names and addresses."""
    return pb.GetReplicaStatusResponse(
        broker_id=status.broker_id,
        replica_id=status.replica_id,
        role=_ROLES[status.role],
        writable=status.writable,
        reason=status.reason,
        epoch=epoch_message(status.epoch),
        log_begin=status.log_begin,
        log_end=status.log_end,
        durable_end=status.durable_end,
        confirm_offset=status.confirm_offset,
        min_in_sync_replicas=status.min_in_sync_replicas,
        in_sync_version=status.in_sync_version,
        in_sync_replicas=status.in_sync_replicas,
        in_sync=status.in_sync,
        connected=status.connected,
        lag_bytes=status.lag_bytes,
        lag_seconds=status.lag_s,
        master_ha_address=status.master_address,
        replicas=map(_replica_message, status.replicas),
        clock_ahead_ms=status.clock_ahead_ms,
    )


def _replica_message(replica: ReplicaStatus) -> pb.ReplicaStatus:
    return pb.ReplicaStatus(
        replica_id=replica.replica_id,
        broker_id=replica.broker_id,
        address=replica.address,
        connected=replica.connected,
        in_sync=replica.in_sync,
        written_offset=replica.written_offset,
        durable_offset=replica.durable_offset,
        acknowledged_offset=replica.acknowledged_offset,
        lag_bytes=replica.lag_bytes,
        lag_seconds=replica.lag_s,
        clock_ahead_ms=replica.clock_ahead_ms,
    )


def _role(number: int) -> BrokerRole:
    for role, known in _ROLES.items():
        if known == number:
            return role
    raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"{number} is no role; allowed are 1 to {len(_ROLES)}")


def _epoch(message: Any) -> Epoch:
    try:
        return epoch_of(message)
    except ValueError as error:
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error


def _check_address(text: str) -> None:
    try:
        parse_address(text)
    except ValueError as error:
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"master_ha_address: {error}") from error

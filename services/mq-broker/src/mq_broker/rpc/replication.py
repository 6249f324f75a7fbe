"""Replication over gRPC: links between masters and replicas, and the calls of operators (mechanism H2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

import grpc

from hourglass.mq.v1 import admin_service_pb2 as pb
from hourglass.mq.v1 import replication_service_pb2_grpc
from mq_broker.core.limits import RejectedError
from mq_broker.core.replica_state import FORMER_MASTER_ID, BrokerRole, Epoch, HaStatus
from mq_broker.processor.broker import Broker
from mq_broker.replication.frames import LinkError, MasterFrame, MasterLink, ReplicaFrame, ReplicaLink
from mq_broker.rpc.calls import answering
from mq_broker.rpc.replication_conversions import (
    DATA_BYTES_MAX,
    STATE_BYTES_MAX,
    epoch_message,
    epoch_of,
    master_frame,
    master_frame_message,
    replica_frame,
    replica_frame_message,
)
from mqproto.codes import ResponseCode
from mqproto.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS
from mqproto.names import parse_address
from mqproto.values import to_message

log = logging.getLogger(__name__)

SentT = TypeVar("SentT")
ReceivedT = TypeVar("ReceivedT")

OTHER_FIELDS_BYTES = 1024 * 1024  # of a frame: names, 4,096 epochs
REPLICA_FRAME_BYTES_MAX = DATA_BYTES_MAX + OTHER_FIELDS_BYTES
MASTER_FRAME_BYTES_MAX = STATE_BYTES_MAX + OTHER_FIELDS_BYTES

# A replica sees within 8 s that a master is gone which says nothing any more: stopped, or behind a network that
# swallows. It is gRPC's ping timeout that counts; the keepalive timeout alone would let a minute go by.
REPLICA_KEEPALIVE_MS, REPLICA_PING_TIMEOUT_MS = 3_000, 5_000
# A master has no hurry: it waits for a replica by haMaxTimeSlaveNotCatchup.
MASTER_KEEPALIVE_MS = 10_000
CONNECT_TIMEOUT_MS = 5_000


def _options(general: tuple[tuple[str, int], ...], own: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((dict(general) | own).items())


def server_options() -> tuple[tuple[str, int], ...]:
    """Of the server that replicas connect to."""
    return _options(
        SERVER_OPTIONS,
        {
            "grpc.max_receive_message_length": REPLICA_FRAME_BYTES_MAX,
            "grpc.max_send_message_length": MASTER_FRAME_BYTES_MAX,
            "grpc.http2.min_ping_interval_without_data_ms": REPLICA_KEEPALIVE_MS // 2,
            "grpc.keepalive_time_ms": MASTER_KEEPALIVE_MS,
            "grpc.http2.bdp_probe": 0,  # as on the replica's side (CHANNEL_OPTIONS)
        },
    )


def channel_options() -> tuple[tuple[str, int], ...]:
    """Of a replica's channel. It has a connection of its own, so that a new channel tries at once."""
    return _options(
        CHANNEL_OPTIONS,
        {
            "grpc.max_receive_message_length": MASTER_FRAME_BYTES_MAX,
            "grpc.max_send_message_length": REPLICA_FRAME_BYTES_MAX,
            "grpc.keepalive_time_ms": REPLICA_KEEPALIVE_MS,
            "grpc.keepalive_timeout_ms": REPLICA_PING_TIMEOUT_MS,
            "grpc.http2.ping_timeout_ms": REPLICA_PING_TIMEOUT_MS,
            "grpc.http2.max_pings_without_data": 0,
            "grpc.min_reconnect_backoff_ms": CONNECT_TIMEOUT_MS,
            "grpc.use_local_subchannel_pool": 1,
        },
    )


class GrpcLink(Generic[SentT, ReceivedT]):
    """`read` and `write` are the stream's; `encode` and `decode` stand between its messages and frames.

    `bad_frame` says what was wrong with a frame that could not be decoded, which ends the link; empty without one.

    Invariants: at most one read and one write are under way, as gRPC wants it; a caller that is cancelled while waiting
    for either breaks neither off, so no frame is lost or torn by that; every failure of the stream is a LinkError.
    """

    def __init__(
        self,
        peer: str,
        read: Callable[[], Awaitable[Any]],
        write: Callable[[Any], Awaitable[None]],
        encode: Callable[[SentT], Any],
        decode: Callable[[Any], ReceivedT],
    ) -> None:
        self.peer = peer
        self.bad_frame = ""
        self._read, self._write = read, write
        self._encode, self._decode = encode, decode
        self._turn = asyncio.Lock()
        self._reading: asyncio.Task[ReceivedT | None] | None = None
        self._writing: set[asyncio.Task[None]] = set()

    async def send(self, frame: SentT) -> None:
        """Send; waits while the other side does not keep up. Raises LinkError."""
        task = asyncio.create_task(self._send(self._encode(frame)), name=f"frame to {self.peer}")
        self._writing.add(task)
        task.add_done_callback(self._written)
        await asyncio.shield(task)

    async def receive(self) -> ReceivedT | None:
        """The next frame; None when the other side has ended the stream. Raises LinkError."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._receive(), name=f"frame from {self.peer}")
        frame = await asyncio.shield(self._reading)  # an error stays where it is: the link is gone for good
        if frame is not None:
            self._reading = None
        return frame

    async def written(self) -> None:
        """Return when nothing is being written: gRPC takes no status while a message is on its way."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = [*self._writing, *([self._reading] if self._reading else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # its sender has it, or was cancelled

    async def _send(self, message: Any) -> None:
        async with self._turn:
            await self._guarded(self._write(message))

    async def _receive(self) -> ReceivedT | None:
        message = await self._guarded(self._read())
        if message is grpc.aio.EOF:
            return None
        try:
            return self._decode(message)
        except ValueError as error:
            self.bad_frame = str(error)
            raise LinkError(f"{self.peer} has sent a frame that makes no sense: {error}") from error

    async def _guarded(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except asyncio.CancelledError:  # in a task of our own: gRPC says so that the stream is gone, or we close
            raise LinkError(f"the stream with {self.peer} was given up") from None
        except grpc.aio.AioRpcError as error:
            raise LinkError(f"the stream with {self.peer} is gone: {error.details()}") from error
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise LinkError(f"the stream with {self.peer} is gone: {error}") from error


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[ReplicaLink]:
    """A link to the master that listens for replicas at `address`, host:port.

    It is there at once; where nothing listens, the first frame fails. Raises LinkError for what is no address.
    """
    try:
        target = str(parse_address(address))
    except ValueError as error:
        raise LinkError(f"no master can listen there: {error}") from error
    async with grpc.aio.insecure_channel(target, options=channel_options()) as channel:
        stub: Any = replication_service_pb2_grpc.ReplicationServiceStub(channel)
        call = stub.Replicate()
        link: GrpcLink[ReplicaFrame, MasterFrame] = GrpcLink(
            target, call.read, call.write, replica_frame_message, master_frame
        )
        try:
            yield link
        finally:
            call.cancel()
            await link.close()


class ServesReplicas(Protocol):
    """What the service needs of the broker's replication."""

    async def serve(self, link: MasterLink) -> None:
        """Serve one replica until its stream ends; a broker that cannot says why and returns. May raise LinkError."""


class ReplicationService(replication_service_pb2_grpc.ReplicationServiceServicer):
    """ReplicationService: each stream is one replica, which `replication` serves until it ends (mechanism H2).

    `stopping` ends the streams.
    """

    def __init__(self, replication: ServesReplicas, stopping: asyncio.Event) -> None:
        self._replication = replication
        self._stopping = stopping

    async def Replicate(self, _requests: Any, context: Any) -> None:  # type: ignore[override]
        """One replica's stream. Reads and writes through `context`, so that it ends when its peer does."""
        link: GrpcLink[MasterFrame, ReplicaFrame] = GrpcLink(
            context.peer(), context.read, context.write, master_frame_message, replica_frame
        )
        try:
            await self._serve(link)
            await link.written()
        finally:
            await link.close()
        if link.bad_frame:
            log.warning("the replica at %s is rejected: %s", link.peer, link.bad_frame)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, link.bad_frame)

    async def _serve(self, link: MasterLink) -> None:
        serving = asyncio.create_task(self._replication.serve(link), name=f"replication to {link.peer}")
        stop = asyncio.create_task(self._stopping.wait(), name="stream stop")
        try:
            await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        except LinkError as error:
            log.info("the stream of the replica at %s is gone: %s", link.peer, error)
        finally:
            serving.cancel()
            stop.cancel()
            await asyncio.gather(serving, stop, return_exceptions=True)


_ROLES = {
    BrokerRole.ASYNC_MASTER: pb.ASYNC_MASTER,
    BrokerRole.SYNC_MASTER: pb.SYNC_MASTER,
    BrokerRole.SLAVE: pb.SLAVE,
}


class ReplicationAdministration:
    """The part of AdminService that is about replication: roles, progress of the replicas, and a change of masters.

    RPCs of `hourglass.mq.v1.AdminService`.
    """

    _broker: Broker

    async def GetReplicaStatus(self, request: pb.GetReplicaStatusRequest, context: Any) -> pb.GetReplicaStatusResponse:
        broker = self._broker
        response = replica_status_response(broker.replication.status())
        response.cluster_name = broker.identity.cluster_name
        response.broker_name = broker.identity.broker_name
        response.address = broker.identity.address
        response.ha_address = broker.options.replication.ha_address
        return response

    @answering(pb.StepDownResponse)
    async def StepDown(self, request: pb.StepDownRequest, context: Any) -> pb.StepDownResponse:
        log_end, role = await self._broker.replication.step_down(_epoch(request.epoch))
        locks = self._broker.queue_locking.handed_over()
        return pb.StepDownResponse(log_end=log_end, role=_ROLES[role], queue_locks=locks)

    @answering(pb.PromoteResponse)
    async def Promote(self, request: pb.PromoteRequest, context: Any) -> pb.PromoteResponse:
        role, epoch = _role(request.role), _epoch(request.epoch)
        await self._broker.replication.promote(
            request.term, request.log_end, role, epoch, whole=request.whole, queue_locks=request.queue_locks
        )
        return pb.PromoteResponse()

    @answering(pb.BecomeSlaveResponse)
    async def BecomeSlave(self, request: pb.BecomeSlaveRequest, context: Any) -> pb.BecomeSlaveResponse:
        if not 0 < request.broker_id < FORMER_MASTER_ID:
            sentence = f"{request.broker_id} is no id of a replica; allowed are 1 to {FORMER_MASTER_ID - 1}"
            raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
        if request.master_ha_address:
            _check_address(request.master_ha_address)
        epoch = _epoch(request.epoch)
        await self._broker.replication.become_replica(request.broker_id, request.master_ha_address, epoch)
        return pb.BecomeSlaveResponse()


def replica_status_response(status: HaStatus) -> pb.GetReplicaStatusResponse:
    """What the status says, without what only the broker knows: names and addresses."""
    return to_message(
        pb.GetReplicaStatusResponse,
        status,
        role=_ROLES[status.role],
        epoch=epoch_message(status.epoch),
        replicas=[to_message(pb.ReplicaStatus, replica) for replica in status.replicas],
    )


def _role(number: int) -> BrokerRole:
    for role, known in _ROLES.items():
        if known == number:
            return role
    raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, f"{number} is no role; allowed are 1 to {len(_ROLES)}")


def _epoch(message: Any) -> Epoch:
    try:
        return epoch_of(message)
    except ValueError as error:
        raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error


def _check_address(text: str) -> None:
    try:
        parse_address(text)
    except ValueError as error:
        raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, f"master_ha_address: {error}") from error

"""ReplicationService: each stream is one slave, which `replication` serves until it ends (MISSION H2)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

import grpc

from hourglass.mq.v1 import replication_service_pb2_grpc
from mq_broker.replication.frames import LinkError, MasterFrame, MasterLink, ReplicaFrame
from mq_broker.rpc.replication_conversions import master_frame_message, replica_frame
from mq_broker.rpc.replication_link import GrpcLink

log = logging.getLogger(__name__)


class ServesSlaves(Protocol):
    """What the service needs of the broker's replication."""

    async def serve(self, link: MasterLink) -> None:
        """Serve one slave until its stream ends; a broker that cannot says why and returns. May raise LinkError."""


class ReplicationService(replication_service_pb2_grpc.ReplicationServiceServicer):
    """The RPC of `hourglass.mq.v1.ReplicationService`. `stopping` ends the streams."""

    def __init__(self, replication: ServesSlaves, stopping: asyncio.Event) -> None:
        self._replication = replication
        self._stopping = stopping

    async def Replicate(self, _requests: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        """One slave's stream. Reads and writes through `context`, so that it ends when its peer does."""
        link: GrpcLink[MasterFrame, ReplicaFrame] = GrpcLink(
            context.peer(), context.read, context.write, master_frame_message, replica_frame
        )
        try:
            await self._serve(link)
            await link.written()
        finally:
            await link.close()
        if link.bad_frame:
            log.warning("the slave at %s is refused: %s", link.peer, link.bad_frame)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, link.bad_frame)

    async def _serve(self, link: MasterLink) -> None:
        serving = asyncio.create_task(self._replication.serve(link), name=f"replication to {link.peer}")
        stop = asyncio.create_task(self._stopping.wait(), name="stream stop")
        try:
            await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        except LinkError as error:
            log.info("the stream of the slave at %s is gone: %s", link.peer, error)
        finally:
            serving.cancel()
            stop.cancel()
            await asyncio.gather(serving, stop, return_exceptions=True)

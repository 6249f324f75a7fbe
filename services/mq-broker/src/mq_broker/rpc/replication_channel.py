"""A slave's way to its master: `connect` is an `ha.links.Connect` over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from hourglass.mq.v1 import replication_service_pb2_grpc
from mq_broker.core.replication.frames import MasterFrame, ReplicaFrame
from mq_broker.ha.links import LinkError, SlaveLink
from mq_broker.rpc.replication_conversions import master_frame, replica_frame_message
from mq_broker.rpc.replication_link import GrpcLink, channel_options
from mqproto.names import parse_address


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[SlaveLink]:
    """A link to the master that listens for slaves at `address`, host:port.

    It is there at once; where nobody listens, the first frame fails. Raises LinkError for what is no address.
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

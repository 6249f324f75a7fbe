"""Questions to a running service: is it ready, and what does it know?"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from hourglass.mq.v1 import admin_service_pb2, admin_service_pb2_grpc, name_service_pb2, name_service_pb2_grpc

PROBE_TIMEOUT_S = 1.0
# A subchannel shared with other channels would share their back-off, and a server that is back would seem away.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
# Of a connection that outlives one question: a broker that is not there yet is tried again at once.
_QUICK_RECONNECT = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100))


async def grpc_serving(address: str) -> bool:
    """Whether the server at host:port says SERVING for all that it does."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def registered_brokers(name_server: str) -> set[str]:
    """Addresses of the brokers that the name server at host:port knows; none when it does not answer."""
    async with grpc.aio.insecure_channel(name_server, options=_OPTIONS) as channel:
        try:
            answer = await name_service_pb2_grpc.NameServiceStub(channel).ListClusters(
                name_service_pb2.ListClustersRequest(), timeout=PROBE_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return set()
    return {address for broker in answer.brokers for address in broker.addresses.values()}


class ReplicaProbe:
    """Asks the broker at host:port again and again; an async context manager, which holds the connection."""

    def __init__(self, broker: str) -> None:
        self._channel = grpc.aio.insecure_channel(broker, options=(*_OPTIONS, *_QUICK_RECONNECT))
        self._stub = admin_service_pb2_grpc.AdminServiceStub(self._channel)

    async def status(self) -> admin_service_pb2.GetReplicaStatusResponse | None:
        """What it says of its replication; None when it does not answer."""
        request = admin_service_pb2.GetReplicaStatusRequest()
        try:
            return await self._stub.GetReplicaStatus(request, timeout=PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()


async def replica_status(broker: str) -> admin_service_pb2.GetReplicaStatusResponse | None:
    """What the broker at host:port says of its replication; None when it does not answer."""
    async with ReplicaProbe(broker) as probe:
        return await probe.status()


async def is_in_sync(slave: str) -> bool:
    """Whether the slave at host:port has heard from its master that it has everything."""
    status = await replica_status(slave)
    return status is not None and status.connected and status.in_sync


async def http_ready(client: httpx.AsyncClient, url: str) -> bool:
    """Whether GET `url` answers 200."""
    try:
        answer = await client.get(url, timeout=PROBE_TIMEOUT_S)
    except httpx.TransportError:
        return False
    return answer.status_code == httpx.codes.OK

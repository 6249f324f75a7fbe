"""Questions to a running service: is it ready, and what does it know?"""

from __future__ import annotations

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from hourglass.mq.v1 import name_service_pb2, name_service_pb2_grpc

PROBE_TIMEOUT_S = 1.0
# A subchannel shared with other channels would share their back-off, and a server that is back would seem away.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


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


async def http_ready(client: httpx.AsyncClient, url: str) -> bool:
    """Whether GET `url` answers 200."""
    try:
        answer = await client.get(url, timeout=PROBE_TIMEOUT_S)
    except httpx.TransportError:
        return False
    return answer.status_code == httpx.codes.OK

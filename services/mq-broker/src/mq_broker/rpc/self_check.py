"""Whether the address that clients are told leads to this very process.

The process answers health checks of a service that no other process has: its name holds a random number. Whoever
answers for it at the advertised address is this process, whatever lies between: a port mapping, a proxy, a name.
"""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from mqproto.grpc_options import CHANNEL_OPTIONS
from mqproto.names import Address
from osenv import Rng

TIMEOUT_S = 2.0


class SelfCheck:
    """One process's mark, and the look for it."""

    def __init__(self, rng: Rng) -> None:
        self._mark = f"hourglass.process.{rng.randbytes(16).hex()}"

    async def leave_mark(self, health_service: health.aio.HealthServicer) -> None:
        """Have the process's health service answer for the mark."""
        await health_service.set(self._mark, health_pb2.HealthCheckResponse.SERVING)

    async def problem(self, address: Address) -> str | None:
        """Why `address` does not lead here, as the end of a sentence; None when it does. Takes 2 s at most."""
        request = health_pb2.HealthCheckRequest(service=self._mark)
        async with grpc.aio.insecure_channel(str(address), options=CHANNEL_OPTIONS) as channel:
            try:
                await health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S, wait_for_ready=False)
            except grpc.aio.AioRpcError as error:
                return _sentence(error)
        return None


def _sentence(error: grpc.aio.AioRpcError) -> str:
    status = error.code()
    if status is grpc.StatusCode.NOT_FOUND:
        return "another process answers there"
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return "something else than a broker answers there"
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"nobody answers there within {TIMEOUT_S:g} s"
    return f"nobody answers there: {error.details()}"

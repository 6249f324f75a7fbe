"""The HTTP client of services: with a bounded pool, traced, and without losing a connection.

httpcore (1.0.9) loses connections. A request that ends after it was given a new connection and before it opens it, by
a cancellation or because its wait for a connection is over, leaves that connection in the pool, where it is neither
open, idle nor closed. When all are like this, each request fails with PoolTimeout, however well the other side is,
until the process ends (https://github.com/encode/httpcore/issues/1093, not fixed in any release).

Invariant: a connection that is not idle belongs to a request.
"""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from servicekit.monitoring import trace_requests

# Below what servers commonly grant (uvicorn: 5 s): a connection that is about to be closed is not used again.
KEEP_ALIVE_S = 3.0


def http_client(
    base_url: str = "",
    *,
    timeout: float | httpx.Timeout,
    connections_max: int,
    headers: Mapping[str, str] | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """Its owner closes it. `timeout` in seconds; `transport` is for tests, without it requests go over the network."""
    client = httpx.AsyncClient(
        base_url=base_url,
        headers=headers,
        timeout=timeout,
        transport=transport or PooledConnections(connections_max),
        trust_env=False,  # the environment's proxies are not part of the configuration
    )
    trace_requests(client)
    return client


class PooledConnections(httpx.AsyncHTTPTransport):
    """At most `connections_max` connections at a time, none of which is lost."""

    def __init__(self, connections_max: int) -> None:
        limits = httpx.Limits(max_connections=connections_max, keepalive_expiry=KEEP_ALIVE_S)
        super().__init__(limits=limits, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except BaseException:
            await self._take_back()
            raise

    async def _take_back(self) -> None:
        """Close connections that no request has, and give their places to requests that wait."""
        pool = self._pool
        taken = [request.connection for request in pool._requests]
        lost = [one for one in pool.connections if one not in taken and not (one.is_idle() or one.is_closed())]
        for one in lost:
            pool._connections.remove(one)
        closing = pool._assign_requests_to_connections()
        await pool._close_connections([*lost, *closing])

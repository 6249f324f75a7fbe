"""The limit on requests, told in every answer: draft-ietf-httpapi-ratelimit-headers-11.

RateLimit-Policy: "default";q=600;w=60
RateLimit: "default";r=599;t=60
"""

from __future__ import annotations

import ipaddress

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from servicekit.api.problem import RATE_LIMITED, problem_response
from servicekit.api.security import Identify, identified
from servicekit.rate_limit import RequestCounter

# Whoever watches the service, and the payment gateway, is never told to come back later.
UNLIMITED_PREFIXES = ("/health/", "/webhooks/")
POLICY_NAME = "default"

# What one subscriber of IPv6 has at least: single addresses of it cost nothing.
_IPV6_PREFIX_BITS = 64


class RequestLimit:
    """ASGI middleware inside Identification: counts by who `identify` says it is, else by the client's address."""

    def __init__(self, app: ASGIApp, counter: RequestCounter, identify: Identify = identified) -> None:
        self._app = app
        self._counter = counter
        self._identify = identify
        limit = counter.limit
        self._policy = f'"{POLICY_NAME}";q={limit.requests};w={limit.window_s}'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(UNLIMITED_PREFIXES):
            await self._app(scope, receive, send)
            return
        standing = self._counter.count(self._who(scope))

        async def send_with_standing(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["RateLimit-Policy"] = self._policy
                headers["RateLimit"] = f'"{POLICY_NAME}";r={standing.remaining};t={standing.reset_s}'
            await send(message)

        if standing.is_allowed:
            await self._app(scope, receive, send_with_standing)
            return
        limit = self._counter.limit
        response = problem_response(
            RATE_LIMITED,
            f"{limit.requests} requests in {limit.window_s} s are served; the next one in {standing.reset_s} s",
            headers={"Retry-After": str(standing.reset_s)},
        )
        await response(scope, receive, send_with_standing)

    def _who(self, scope: Scope) -> str:
        caller = self._identify(scope)
        if caller is not None:
            return f"caller {caller.subject}"
        client = scope.get("client")
        return f"address {_network(client[0]) if client else 'unknown'}"


def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a name, as tests have
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False))
    return str(address)

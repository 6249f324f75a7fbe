"""What a request may cost: its body, how long it may take, and what is refused under load."""

from __future__ import annotations

import ipaddress
from html import escape

from fastapi.responses import HTMLResponse, Response
from opentelemetry.metrics import CallbackOptions, Observation
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import telemetry
from osenv import Clock
from osenv.clock import timeout
from servicekit.admission import Admission, Kind, OverloadedError
from servicekit.api.problem import (
    BODY_TOO_LARGE,
    OVERLOADED,
    RATE_LIMITED,
    REQUEST_TIMEOUT,
    ProblemType,
    problem_response,
)
from servicekit.api.security import Identify, identified
from servicekit.rate_limit import RequestCounter

# ----------------------------------------------------------------------------------------------------------------------
# A limit on request bodies in bytes and in time, kept before a request gets a place in work.


BODY_MAX_BYTES = 64 * 1024  # the longest legal request, an order of 50 lines, has about 6 KiB
BODY_MAX_S = 10.0  # 64 KiB at 52 kbit/s


class BodyLimit:
    """ASGI middleware: the application gets a request once its whole body is there.

    A body over `BODY_MAX_BYTES`, its length declared or not, and one that takes longer than `BODY_MAX_S` are answered
    with a problem; their rest is not read.
    """

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > BODY_MAX_BYTES:
            await _refuse(BODY_TOO_LARGE, _TOO_LARGE, scope, receive, send)
            return
        if b"content-length" not in headers and b"transfer-encoding" not in headers:  # no body: RFC 9112, 6.3
            await self._app(scope, receive, send)
            return
        try:
            async with timeout(self._clock, BODY_MAX_S):
                body = await _body(receive)
        except TimeoutError:
            await _refuse(REQUEST_TIMEOUT, _TOO_LATE, scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replayed(body, receive), send)


_TOO_LARGE = f"a body of at most {BODY_MAX_BYTES} bytes is taken"
_TOO_LATE = f"the body has to arrive within {BODY_MAX_S:g} s; send the request again"


async def _body(receive: Receive) -> bytes | None:
    """The body, or as much as shows that it is too long; None when the client has gone meanwhile."""
    body = bytearray()
    while len(body) <= BODY_MAX_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body as one message, and then what the server tells."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        if len(body) > BODY_MAX_BYTES:
            # FastAPI lets this kind of error pass while it reads a body: a problem for programs, a page for people.
            raise HTTPException(BODY_TOO_LARGE.status, _TOO_LARGE)
        return messages.pop() if messages else await receive()

    return replay


async def _refuse(kind: ProblemType, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
    await problem_response(kind, detail, headers={"Connection": "close"})(scope, receive, send)


# ----------------------------------------------------------------------------------------------------------------------
# The limit on requests, told in every answer: draft-ietf-httpapi-ratelimit-headers-11.
#
#     RateLimit-Policy: "default";q=600;w=60
#     RateLimit: "default";r=599;t=60 (for example)


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


# ----------------------------------------------------------------------------------------------------------------------
# More requests than the service can carry out are answered 503, with when to come back: see servicekit.admission.
#
# Metrics: hourglass.http.requests.in_flight (in work now), hourglass.http.requests.shed (answered so), by method.


_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_METHOD = "http.request.method"
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<h1>{title}</h1><p>Nothing has happened: {detail}.</p><p>Please try again in {seconds} s.</p></html>
"""


class LoadShedding:
    """ASGI middleware inside BodyLimit: a request, which is complete, has its place in work until its answer begins.

    A stream of events, which lasts for minutes, holds no place once it has begun. Whoever watches the service and the
    payment gateway's webhooks need none: what they ask is little, and what money does has to be heard.
    """

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

        def in_flight(_options: CallbackOptions) -> list[Observation]:
            return [Observation(admission.in_work)]  # for as long as the process lives: the application need not

        meter = telemetry.meter("servicekit")
        meter.create_observable_up_down_counter(
            "hourglass.http.requests.in_flight", [in_flight], unit="{request}", description="requests in work"
        )
        self._shed = meter.create_counter(
            "hourglass.http.requests.shed", unit="{request}", description="requests refused because of too much work"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(UNLIMITED_PREFIXES):
            await self._app(scope, receive, send)
            return
        try:
            ticket = await self._admission.enter(Kind.READ if scope["method"] in _READING else Kind.WRITE)
        except OverloadedError as error:
            self._shed.add(1, {_METHOD: scope["method"]})
            await _refusal(scope, error)(scope, receive, send)
            return

        async def send_and_leave(message: Message) -> None:
            if message["type"] == "http.response.start":
                ticket.leave()
            await send(message)

        try:
            await self._app(scope, receive, send_and_leave)
        finally:
            ticket.leave()


def _refusal(scope: Scope, error: OverloadedError) -> Response:
    headers = {"Retry-After": str(error.retry_after_s)}
    if "text/html" not in Headers(scope=scope).get("accept", ""):
        return problem_response(OVERLOADED, str(error), headers=headers)
    page = _PAGE.format(title=escape(OVERLOADED.title), detail=escape(str(error)), seconds=error.retry_after_s)
    return HTMLResponse(page, OVERLOADED.status, headers | {"Content-Security-Policy": "default-src 'none'"})

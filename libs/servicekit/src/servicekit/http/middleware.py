"""The middleware before a route: the request's trace, its caller, and the limits on its body, rate and place in work.

    @router.post("/orders")
    async def place_order(caller: Annotated[Caller, Depends(requires(ORDERS_WRITE))]) -> OrderAnswer: ...

The use case decides to whom an object belongs: it answers for another buyer's object as for one that does not exist.
Invariants: the token of a request (`Authorization: Bearer <token>`, RFC 6750) is verified once; cookies are never
looked at, so that no other site can make a browser ask anything of these routes; a body is complete, and within its
limits in bytes and in time, before its request gets a place in work.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from html import escape
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.dependencies.models import Dependant
from fastapi.responses import HTMLResponse, Response
from fastapi.routing import RouteContext
from fastapi.security import HTTPBearer
from fastapi.telemetry import TelemetryConfig
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import SpanKind
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import telemetry
from osenv import Clock
from osenv.clock import timeout
from servicekit.auth import Caller, InvalidTokenError, Tokens
from servicekit.http.limits import Admission, Kind, OverloadedError, RequestCounter
from servicekit.http.problem import (
    BODY_TOO_LARGE,
    CHALLENGE,
    FORBIDDEN,
    OVERLOADED,
    RATE_LIMITED,
    REQUEST_TIMEOUT,
    UNAUTHENTICATED,
    ProblemError,
    ProblemType,
    problem_response,
)

IsUntraced = Callable[[MutableMapping[str, Any]], bool]

_TRACEPARENT = b"traceparent"


def untraced(paths: Sequence[str]) -> IsUntraced:
    """Whether a scope of ASGI asks for one of these paths."""
    known = frozenset(paths)
    return lambda scope: scope["path"] in known


def request_telemetry(is_untraced: IsUntraced | None = None) -> TelemetryConfig:
    """For an application: spans and metrics as far as this process has any; a span for a request, and none inside."""
    return {
        "tracing": telemetry.is_tracing(),
        "metrics": telemetry.is_measuring(),
        "logs": False,  # a log line says it, with the trace
        "operation_spans": False,
        "auto_configure": False,
        "exclude": is_untraced,
    }


class TraceIds:
    """ASGI middleware: a request runs in its caller's trace, or in a new one, and nothing is recorded of it.

    Problems, log lines and rows name the trace of a request in any case. Collecting unused span attributes took a tenth
    of the time to place an order, so an id is made without them.
    """

    def __init__(self, app: ASGIApp, is_untraced: IsUntraced) -> None:
        self._app = app
        self._is_untraced = is_untraced
        self._tracer = telemetry.tracer("servicekit.http")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_untraced(scope):
            await self._app(scope, receive, send)
            return
        caller = next((value.decode("latin-1") for name, value in scope["headers"] if name == _TRACEPARENT), None)
        with self._tracer.start_as_current_span(scope["method"], telemetry.context_of(caller), SpanKind.SERVER):
            await self._app(scope, receive, send)


BEARER = HTTPBearer(
    scheme_name="bearer",
    bearerFormat="JWT",
    description="A token of the shop, made by `python -m servicekit.token`. Where a route names several scopes, one of"
    " them is enough.",
    auto_error=False,
)

# The authenticated caller of a request, if there is one.
Identify = Callable[[Scope], Caller | None]

_CALLER = "caller"


class Identification:
    """ASGI middleware: authenticates a request's caller before anything else looks at it."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})[_CALLER] = self._identify(scope)
        await self._app(scope, receive, send)

    def _identify(self, scope: Scope) -> Caller | InvalidTokenError | None:
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if not values:
            return None
        scheme, _, token = values[0].decode("latin-1").partition(" ")
        if len(values) > 1 or scheme.lower() != "bearer":
            return InvalidTokenError("send one Authorization header, with Bearer and a token")
        try:
            return self._tokens.verify(token.strip())
        except InvalidTokenError as error:
            return error


def identified(scope: Scope) -> Caller | None:
    """The authenticated caller, if there is one."""
    found = scope.get("state", {}).get(_CALLER)
    return found if isinstance(found, Caller) else None


def _caller_of(scope: Scope) -> Caller:
    """The authenticated caller. Raises the problem `unauthenticated`."""
    found = scope.get("state", {}).get(_CALLER)
    if isinstance(found, InvalidTokenError):
        challenge = f'{CHALLENGE}, error="invalid_token", error_description="{found}"'
        raise ProblemError(UNAUTHENTICATED, str(found), headers={"WWW-Authenticate": challenge})
    if not isinstance(found, Caller):
        raise ProblemError(UNAUTHENTICATED, "send Authorization: Bearer and a token")
    return found


class TokensFirst:
    """ASGI middleware inside Identification: a route that `requires` a caller gets no request without one.

    Such a request is answered 401 before its body is read and before it takes a place in work. `routes` is asked once,
    by the first request without a caller.
    """

    def __init__(self, app: ASGIApp, routes: Callable[[], Iterable[RouteContext]]) -> None:
        self._app = app
        self._routes = routes
        self._guarded: list[RouteContext] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and identified(scope) is None and self._is_guarded(scope["method"], scope["path"]):
            try:
                _caller_of(scope)
            except ProblemError as error:
                await problem_response(error.kind, error.detail, headers=error.headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_guarded(self, method: str, path: str) -> bool:
        if self._guarded is None:
            self._guarded = [route for route in self._routes() if _asks_for_token(getattr(route, "dependant", None))]
        return any(method in (route.methods or ()) and route.path_regex.match(path) for route in self._guarded)


def _asks_for_token(dependant: Dependant | None) -> bool:
    return dependant is not None and (
        dependant.call is BEARER or any(_asks_for_token(inner) for inner in dependant.dependencies)
    )


def requires(*scopes: str) -> Callable[..., Awaitable[Caller]]:
    """A dependency: the caller, with one of `scopes` at least; without scopes, any caller with a valid token.

    Raises the problems `unauthenticated` and `forbidden`.
    """

    # The scheme is for the OpenAPI document; the middleware has done its work.
    async def caller(request: Request, _documented: object = Security(BEARER, scopes=list(scopes))) -> Caller:
        found = _caller_of(request.scope)
        if scopes and not any(found.has(scope) for scope in scopes):
            challenge = f'{CHALLENGE}, error="insufficient_scope", scope="{" ".join(scopes)}"'
            raise ProblemError(
                FORBIDDEN,
                f"the token of {found.subject!r} lacks the scope {' or '.join(scopes)}",
                members={"scopes": list(scopes)},
                headers={"WWW-Authenticate": challenge},
            )
        return found

    return caller


CallerOf = Annotated[Caller, Depends(requires())]


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
            await _reject(BODY_TOO_LARGE, _TOO_LARGE, scope, receive, send)
            return
        if b"content-length" not in headers and b"transfer-encoding" not in headers:  # no body: RFC 9112, 6.3
            await self._app(scope, receive, send)
            return
        try:
            async with timeout(self._clock, BODY_MAX_S):
                body = await _body(receive)
        except TimeoutError:
            await _reject(REQUEST_TIMEOUT, _TOO_LATE, scope, receive, send)
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


async def _reject(kind: ProblemType, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
    await problem_response(kind, detail, headers={"Connection": "close"})(scope, receive, send)


# Probes and the payment gateway are never told to come back later.
UNLIMITED_PREFIXES = ("/health/", "/webhooks/")
POLICY_NAME = "default"

# What one subscriber of IPv6 has at least: single addresses of it cost nothing.
_IPV6_PREFIX_BITS = 64


class RequestLimit:
    """ASGI middleware inside Identification: counts by the caller that `identify` finds, else by the client's address.

    Every answer tells the limit, as draft-ietf-httpapi-ratelimit-headers-11 has it, for example
    `RateLimit-Policy: "default";q=600;w=60` and `RateLimit: "default";r=599;t=60`.
    """

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


_PLACE = "place"  # of a request in work, in its state
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_METHOD = "http.request.method"
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<h1>{title}</h1><p>Nothing has happened: {detail}.</p><p>Please try again in {seconds} s.</p></html>
"""


class LoadShedding:
    """ASGI middleware inside BodyLimit: a request, which is complete, has its place in work until its answer begins.

    A stream of events, which lasts for minutes, holds no place once it has begun; nor does a request that says that it
    waits for another service (`leave_place`). Probes and the payment gateway's webhooks need none: probes cost little,
    and webhooks must not be lost. More requests than the service can carry out are answered 503, with when to come back
    (`Admission`).

    Metrics, by method: hourglass.http.requests.in_flight (in work now), hourglass.http.requests.shed (answered so).
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
            "hourglass.http.requests.shed", unit="{request}", description="requests rejected because of too much work"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(UNLIMITED_PREFIXES):
            await self._app(scope, receive, send)
            return
        try:
            ticket = await self._admission.enter(Kind.READ if scope["method"] in _READING else Kind.WRITE)
        except OverloadedError as error:
            self._shed.add(1, {_METHOD: scope["method"]})
            await _rejection(scope, error)(scope, receive, send)
            return

        scope.setdefault("state", {})[_PLACE] = ticket

        async def send_and_leave(message: Message) -> None:
            if message["type"] == "http.response.start":
                ticket.leave()
            await send(message)

        try:
            await self._app(scope, receive, send_and_leave)
        finally:
            ticket.leave()


def leave_place(scope: Scope) -> None:
    """Give the place back: from here on the request waits for another service, so long that it would keep others
    out."""
    place = scope.get("state", {}).get(_PLACE)
    if place is not None:
        place.leave()


def _rejection(scope: Scope, error: OverloadedError) -> Response:
    headers = {"Retry-After": str(error.retry_after_s)}
    if "text/html" not in Headers(scope=scope).get("accept", ""):
        return problem_response(OVERLOADED, str(error), headers=headers)
    page = _PAGE.format(title=escape(OVERLOADED.title), detail=escape(str(error)), seconds=error.retry_after_s)
    return HTMLResponse(page, OVERLOADED.status, headers | {"Content-Security-Policy": "default-src 'none'"})

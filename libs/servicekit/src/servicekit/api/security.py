"""Who is asking, over HTTP: `Authorization: Bearer <token>` (RFC 6750), and what a route wants of them.

    @router.post("/orders")
    async def place_order(caller: Annotated[Caller, Depends(requires(ORDERS_WRITE))]) -> OrderAnswer: ...

Whose an object is, is for the use case to decide: it answers for another buyer's object as for one that does not exist.
Invariants: the token of a request is verified once; cookies are never looked at, so that no other site can make a
browser ask anything of these routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.dependencies.models import Dependant
from fastapi.routing import RouteContext
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from servicekit.api.problem import CHALLENGE, FORBIDDEN, UNAUTHENTICATED, ProblemError, problem_response
from servicekit.auth import Caller, InvalidTokenError, Tokens

BEARER = HTTPBearer(
    scheme_name="bearer",
    bearerFormat="JWT",
    description="A token of the shop, made by `python -m servicekit.token`. Where a route names several scopes, one of"
    " them is enough.",
    auto_error=False,
)

# Who sends a request, if that is known and proven.
Identify = Callable[[Scope], Caller | None]

_CALLER = "caller"


class Identification:
    """ASGI middleware: finds out whose request it is, before anything else looks at it."""

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
    """Who asks, if that is known and proven."""
    found = scope.get("state", {}).get(_CALLER)
    return found if isinstance(found, Caller) else None


def _caller_of(scope: Scope) -> Caller:
    """Who asks. Raises the problem `unauthenticated`."""
    found = scope.get("state", {}).get(_CALLER)
    if isinstance(found, InvalidTokenError):
        challenge = f'{CHALLENGE}, error="invalid_token", error_description="{found}"'
        raise ProblemError(UNAUTHENTICATED, str(found), headers={"WWW-Authenticate": challenge})
    if not isinstance(found, Caller):
        raise ProblemError(UNAUTHENTICATED, "send Authorization: Bearer and a token")
    return found


class TokensFirst:
    """ASGI middleware inside Identification: a route that `requires` a caller is told of no request without one.

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
    """A dependency: the caller, who has one of `scopes` at least; without scopes, anybody with a valid token.

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

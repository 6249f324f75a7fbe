"""Who is asking, over HTTP: `Authorization: Bearer <token>` (RFC 6750), and what a route wants of them.

    @router.post("/orders")
    async def place_order(caller: Annotated[Caller, Depends(requires(ORDERS_WRITE))]) -> OrderAnswer: ...

Whose an object is, is for the use case to decide: it answers for another buyer's object as for one that does not exist.
Invariants: the token of a request is verified once; cookies are never looked at, so that no other site can make a
browser ask anything of these routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from servicekit.api.problem import CHALLENGE, FORBIDDEN, UNAUTHENTICATED, ProblemError
from servicekit.auth import Caller, InvalidTokenError, Tokens

BEARER = HTTPBearer(
    scheme_name="bearer",
    bearerFormat="JWT",
    description="A token of the shop, made by `python -m servicekit.token`. Where a route names several scopes, one of"
    " them is enough.",
    auto_error=False,
)

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


def requires(*scopes: str) -> Callable[..., Awaitable[Caller]]:
    """A dependency: the caller, who has one of `scopes` at least; without scopes, anybody with a valid token.

    Raises the problems `unauthenticated` and `forbidden`.
    """

    # The scheme is for the OpenAPI document; the middleware has done its work.
    async def caller(request: Request, _documented: object = Security(BEARER, scopes=list(scopes))) -> Caller:
        found = request.scope.get("state", {}).get(_CALLER)
        if isinstance(found, InvalidTokenError):
            challenge = f'{CHALLENGE}, error="invalid_token", error_description="{found}"'
            raise ProblemError(UNAUTHENTICATED, str(found), headers={"WWW-Authenticate": challenge})
        if not isinstance(found, Caller):
            raise ProblemError(UNAUTHENTICATED, "send Authorization: Bearer and a token")
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

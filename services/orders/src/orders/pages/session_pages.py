"""Signing in and out. In a sandbox everybody is whom he says; elsewhere he brings a token that he was given."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response

from orders.pages.cart import Cart
from orders.pages.parts import ROOT, ForbiddenError, PartsOf, VisitorOf
from orders.pages.visitor import keep_cart, sign_in, sign_out
from servicekit.auth import ROLES, TOKEN_MAX_CHARACTERS
from servicekit.http.parameters import ID_PATTERN

router = APIRouter(prefix="/session")

NEXT_MAX = 300


@router.get("")
async def show(
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    next_path: Annotated[str, Query(alias="next", max_length=NEXT_MAX)] = "",
) -> Response:
    return parts.renderer.page(
        request,
        visitor,
        "session.html",
        next_path=_own_path(next_path),
        roles=tuple(ROLES),
        may_choose_anybody=parts.may_choose_anybody,
    )


@router.post("/sandbox")
async def sign_in_as_anybody(
    request: Request,
    parts: PartsOf,
    subject: Annotated[str, Form(pattern=ID_PATTERN)],
    role: Annotated[str, Form(pattern=f"^({'|'.join(ROLES)})$")],
    next_path: Annotated[str, Form(alias="next", max_length=NEXT_MAX)] = "",
) -> Response:
    if not parts.may_choose_anybody:
        raise ForbiddenError("sandbox")
    return _signed_in(request, parts.tokens.issue(subject, ROLES[role]), next_path)


@router.post("/token")
async def sign_in_by_token(
    request: Request,
    parts: PartsOf,
    token: Annotated[str, Form(min_length=1, max_length=TOKEN_MAX_CHARACTERS)],
    next_path: Annotated[str, Form(alias="next", max_length=NEXT_MAX)] = "",
) -> Response:
    parts.tokens.verify(token.strip())
    return _signed_in(request, token.strip(), next_path)


@router.post("/end")
async def end(request: Request) -> Response:
    """The cart goes as well: the next one at this browser may be somebody else."""
    response = RedirectResponse(f"{ROOT}/", status_code=303)
    sign_out(response)
    keep_cart(request, response, Cart())
    return response


def _signed_in(request: Request, token: str, next_path: str) -> Response:
    response = RedirectResponse(_own_path(next_path), status_code=303)
    sign_in(request, response, token)
    return response


def _own_path(path: str) -> str:
    """The path if it is one of the shop's pages, else the products: nobody is led to another site from here."""
    is_own = path.startswith(f"{ROOT}/") and "//" not in path and "\\" not in path and path.isprintable()
    return path if is_own else f"{ROOT}/"

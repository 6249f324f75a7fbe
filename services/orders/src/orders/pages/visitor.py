"""Who looks at a page: in which language, signed in as whom, with what in the cart. All of it comes from cookies.

The session is a token of servicekit.auth in a cookie that scripts cannot read; one that is not valid any more signs
nobody in.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from orders.pages import cart as carts
from orders.pages import language as languages
from orders.pages.cart import Cart, parse_cart
from orders.pages.language import Language
from servicekit.auth import LIFETIME_S, Caller, InvalidTokenError, Tokens

SESSION_COOKIE = "shop_session"
COOKIE_PATH = "/shop"


@dataclass(frozen=True, slots=True)
class Visitor:
    """`has_chosen` says that this request changes the language; `was_signed_in` that a session is over."""

    language: Language
    has_chosen: bool
    caller: Caller | None
    was_signed_in: bool
    cart: Cart

    def may(self, scope: str) -> bool:
        return self.caller is not None and self.caller.has(scope)


def visitor_of(request: Request, tokens: Tokens) -> Visitor:
    """Never raises: what a cookie says and cannot be understood is not said."""
    chosen = languages.chosen(request.query_params.get(languages.PARAMETER))
    language = (
        chosen
        or languages.chosen(request.cookies.get(languages.COOKIE))
        or languages.preferred(request.headers.get("Accept-Language", ""))
    )
    caller = signed_in(request, tokens)
    return Visitor(
        language=language,
        has_chosen=chosen is not None,
        caller=caller,
        was_signed_in=bool(request.cookies.get(SESSION_COOKIE)) and caller is None,
        cart=parse_cart(request.cookies.get(carts.COOKIE, "")),
    )


def signed_in(connection: HTTPConnection, tokens: Tokens) -> Caller | None:
    """Whose session the cookie is, while it is valid."""
    try:
        return tokens.verify(connection.cookies.get(SESSION_COOKIE, ""))
    except InvalidTokenError:
        return None


def keep_language(request: Request, response: Response, language: Language) -> None:
    """The visitor's choice, for a year."""
    _keep(request, response, languages.COOKIE, language.value, languages.COOKIE_MAX_AGE_S)


def keep_cart(request: Request, response: Response, cart: Cart) -> None:
    """The cart, or no cookie for an empty one."""
    if cart.lines:
        _keep(request, response, carts.COOKIE, cart.text, carts.COOKIE_MAX_AGE_S)
    else:
        response.delete_cookie(carts.COOKIE, path=COOKIE_PATH)


def sign_in(request: Request, response: Response, token: str) -> None:
    """The token is the session, as long as it is valid."""
    _keep(request, response, SESSION_COOKIE, token, LIFETIME_S)


def sign_out(response: Response) -> None:
    response.delete_cookie(SESSION_COOKIE, path=COOKIE_PATH)


def _keep(request: Request, response: Response, name: str, value: str, max_age_s: int) -> None:
    response.set_cookie(
        name,
        value,
        max_age=max_age_s,
        path=COOKIE_PATH,
        httponly=True,
        secure=request.url.scheme == "https",
        samesite="lax",
    )

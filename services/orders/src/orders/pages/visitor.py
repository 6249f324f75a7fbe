"""The visitor of a page: language, session and cart, all of which come from cookies.

The session is a token of servicekit.auth in a cookie that scripts cannot read; one that is not valid any more counts as
none.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from orders.api.schemas import LINES_MAX, QUANTITY_MAX
from orders.domain.order import RequestedLine
from orders.pages import language as languages
from orders.pages.language import Language
from servicekit.auth import LIFETIME_S, Caller, InvalidTokenError, Tokens
from servicekit.identifiers import is_identifier

COOKIE = "shop_cart"
COOKIE_MAX_AGE_S = 7 * 86_400

_BETWEEN_LINES, _BEFORE_QUANTITY = "|", ":"
_QUANTITY_DIGITS_MAX = len(str(QUANTITY_MAX))


@dataclass(frozen=True, slots=True)
class Cart:
    """What a visitor wishes to order: wishes in a cookie, so that it needs no account, no script and no table.

    Format: `seat-12A:2|seat-12B:1`. Whatever is not so is left out: a cookie is the visitor's to write. Invariants: a
    product is in one line; quantities are 1 to QUANTITY_MAX; there are at most LINES_MAX lines, so that any cart can be
    ordered.
    """

    lines: tuple[RequestedLine, ...] = ()

    @property
    def units(self) -> int:
        return sum(line.quantity for line in self.lines)

    def with_more(self, product_id: str, quantity: int) -> Cart:
        """So many units more of a product; what does not fit is left out."""
        before = next((line.quantity for line in self.lines if line.product_id == product_id), 0)
        return self.with_quantity(product_id, before + quantity)

    def with_quantity(self, product_id: str, quantity: int) -> Cart:
        """So many units of a product in all; 0 takes it out."""
        quantity = min(quantity, QUANTITY_MAX)
        is_known = any(line.product_id == product_id for line in self.lines)
        if quantity < 1:
            return Cart(tuple(line for line in self.lines if line.product_id != product_id))
        if not is_known:
            return Cart((*self.lines, RequestedLine(product_id, quantity))[:LINES_MAX])
        return Cart(
            tuple(RequestedLine(product_id, quantity) if line.product_id == product_id else line for line in self.lines)
        )

    @property
    def text(self) -> str:
        """As a cookie and a form keep it."""
        return _BETWEEN_LINES.join(f"{line.product_id}{_BEFORE_QUANTITY}{line.quantity}" for line in self.lines)


def parse_cart(text: str) -> Cart:
    """The cart of a cookie or a form."""
    cart = Cart()
    for part in text.split(_BETWEEN_LINES)[:LINES_MAX]:
        product_id, _, quantity = part.partition(_BEFORE_QUANTITY)
        if is_identifier(product_id) and is_quantity(quantity):
            cart = cart.with_quantity(product_id, int(quantity))
    return cart


def is_quantity(text: str) -> bool:
    """Whether the text is a whole number that a cart can hold; 0 is one."""
    return text.isascii() and text.isdigit() and len(text) <= _QUANTITY_DIGITS_MAX


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
        cart=parse_cart(request.cookies.get(COOKIE, "")),
    )


def signed_in(connection: HTTPConnection, tokens: Tokens) -> Caller | None:
    """The subject of the session in the cookie, while it is valid."""
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
        _keep(request, response, COOKIE, cart.text, COOKIE_MAX_AGE_S)
    else:
        response.delete_cookie(COOKIE, path=COOKIE_PATH)


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

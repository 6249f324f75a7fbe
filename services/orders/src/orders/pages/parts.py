"""What every page has: its parts, the renderer, and errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, cast
from urllib.parse import urlencode, urlsplit

from fastapi import Depends
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from orders.api.routes import UseCases
from orders.domain.order import OrderStatus
from orders.pages.language import (
    PARAMETER,
    Language,
    Texts,
    format_amount,
    format_moment,
    format_money,
    format_remaining,
    machine_moment,
)
from orders.pages.visitor import Visitor, keep_language, visitor_of
from orders.service.order_feed import OrderFeed
from orders.service.payments import PaymentDesk
from orders.service.place_order import Baskets
from orders.service.queries import DeadLetters
from orders.service.sample_catalogue import is_sample
from osenv import Clock, Rng
from servicekit import auth
from servicekit.auth import Caller, Tokens

ROOT = "/shop"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("orders.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals |= {
        "root": ROOT,
        "money": format_money,
        "amount": format_amount,
        "machine_moment": machine_moment,
        "remaining": format_remaining,
        "is_sample": is_sample,
        "statuses": tuple(OrderStatus),
        "scopes": {"see_all": auth.ORDERS_ALL, "ship": auth.ORDERS_SHIP, "buy": auth.ORDERS_WRITE},
    }
    return environment


class Renderer:
    """Makes pages; templates are read and compiled once in a process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def page(
        self, request: Request, visitor: Visitor, template: str, *, status: int = 200, **values: object
    ) -> HTMLResponse:
        """The page; a language that this request asked for is remembered."""
        language = visitor.language
        text = (
            _environment()
            .get_template(template)
            .render(
                values
                | {
                    "t": Texts(language),
                    "language": language,
                    "visitor": visitor,
                    "now_ms": self._clock.wall_ms(),
                    "moment": lambda at_ms: format_moment(at_ms, language),
                    "other_language_url": _in_language(request, language.other),
                    "path": request.url.path if request.method == "GET" else "",
                }
            )
        )
        response = HTMLResponse(text, status)
        if visitor.has_chosen:
            keep_language(request, response, language)
        return response


def _in_language(request: Request, language: Language) -> str:
    """Where the same page is in the other language; what was not asked for by GET begins at the products."""
    if request.method != "GET":
        return f"{ROOT}/?{urlencode({PARAMETER: language.value})}"
    others = [(name, value) for name, value in request.query_params.multi_items() if name != PARAMETER]
    return f"{request.url.path}?{urlencode([*others, (PARAMETER, language.value)])}"


class PageError(Exception):
    """`name` is that of the sentence in the catalogs, under `problem.`; `status` is the HTTP status."""

    name = "internal-error"
    status = 500


class NotSignedInError(PageError):
    """The page is for people who are signed in; others are led to the page for signing in."""

    name = "unauthenticated"
    status = 401


class ForbiddenError(PageError):
    """The visitor is known, and may not do this."""

    name = "forbidden"
    status = 403

    def __init__(self, scope: str) -> None:
        super().__init__(f"this needs the scope {scope!r}")


class OtherSiteError(PageError):
    """A form was sent from a page of another site (cross-site request forgery)."""

    name = "other-site"
    status = 403

    def __init__(self) -> None:
        super().__init__("the request does not say that it comes from a page of this shop")


class BadFormError(PageError):
    """A field of a form cannot be used."""

    name = "invalid-request"
    status = 422


class BadAmountError(BadFormError):
    """An amount of money is not one."""

    name = "not-an-amount"


class UnknownMethodError(BadFormError):
    """A way to pay that there is not."""

    name = "no-such-method"


_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})  # none: the visitor's own doing, no page's


@dataclass(frozen=True, slots=True)
class PageParts:
    """`trace_url` has {trace_id} in it, or is None; `may_choose_anybody` is for sandboxes only; `token_command` prints
    an access token, or is None.
    """

    use_cases: UseCases
    baskets: Baskets
    desk: PaymentDesk
    feed: OrderFeed
    dead_letters: DeadLetters
    tokens: Tokens
    clock: Clock
    rng: Rng
    renderer: Renderer
    trace_url: str | None
    may_choose_anybody: bool
    token_command: str | None
    payment_window_ms: int

    def new_key(self) -> str:
        """The idempotency key of a form: one form makes one thing, however often it is sent."""
        return self.rng.randbytes(16).hex()


def parts_of(request: Request) -> PageParts:
    return cast(PageParts, request.app.state.parts)


async def _parts(request: Request) -> PageParts:  # async, because FastAPI hands a plain function to a thread
    return parts_of(request)


async def _visitor(request: Request) -> Visitor:
    return visitor_of(request, parts_of(request).tokens)


PartsOf = Annotated[PageParts, Depends(_parts)]
VisitorOf = Annotated[Visitor, Depends(_visitor)]


def needs(scope: str) -> Callable[[Visitor], Awaitable[Caller]]:
    """A dependency: the caller, who has this scope. Raises NotSignedInError, ForbiddenError."""

    async def caller(visitor: VisitorOf) -> Caller:
        if visitor.caller is None:
            raise NotSignedInError
        if not visitor.caller.has(scope):
            raise ForbiddenError(scope)
        return visitor.caller

    return caller


async def require_own_site(request: Request) -> None:
    """A request that changes something comes from a page of this shop. Raises OtherSiteError.

    Every browser of today says where a form was sent from; what says nothing is no browser, and has the API.
    """
    if request.method in _SAFE_METHODS:
        return
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        if site not in _OWN_SITES:
            raise OtherSiteError
        return
    origin = request.headers.get("Origin", "")
    if not origin or urlsplit(origin).netloc != request.headers.get("Host"):
        raise OtherSiteError

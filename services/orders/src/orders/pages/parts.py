"""What the pages work with, and how a route gets it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, cast
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.requests import Request

from orders.api.dependencies import UseCases
from orders.pages.page_errors import ForbiddenError, NotSignedInError, OtherSiteError
from orders.pages.renderer import Renderer
from orders.pages.visitor import Visitor, visitor_of
from orders.service.basket import Baskets
from orders.service.dead_letters import DeadLetters
from orders.service.order_feed import OrderFeed
from orders.service.payment_desk import PaymentDesk
from osenv import Clock, Rng
from servicekit.auth import Caller, Tokens

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})  # none: the visitor's own doing, no page's


@dataclass(frozen=True, slots=True)
class PageParts:
    """`trace_url` has {trace_id} in it, or is None; `may_choose_anybody` is for sandboxes only."""

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

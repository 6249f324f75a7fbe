"""The pages as an application of their own below /shop: their errors are pages, and they are in no API document."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orders.pages import (
    cart_pages,
    operator_order_pages,
    operator_pages,
    order_pages,
    problem_pages,
    product_pages,
    session_pages,
)
from orders.pages.parts import ROOT, PageParts, require_own_site
from servicekit.http.middleware import request_telemetry

# Styles, scripts and images come from here and nowhere else, nothing is inline, and nobody frames the shop.
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
# A page is somebody's own, and a file may change with the next version: both are asked for again, files by their tag.
_CACHE_CONTROL = "private, no-cache"


class _PageFrame:
    """ASGI middleware: what every answer of the pages says to the browser, and a page for what nobody expected.

    Such an error ends here: the application around would log it a second time.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", _CACHE_CONTROL)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            if has_begun:
                raise
            response = problem_pages.unexpected_error(Request(scope), error)
            await response(scope, receive, send_with_headers)


def mount_pages(api: FastAPI, parts: PageParts) -> None:
    """Put the pages below /shop of the service's own application."""
    pages = FastAPI(
        telemetry=request_telemetry(),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(require_own_site)],
        redirect_slashes=False,
    )
    pages.state.parts = parts
    for module in (product_pages, cart_pages, order_pages, operator_pages, operator_order_pages, session_pages):
        pages.include_router(module.router)
    pages.mount("/static", StaticFiles(packages=[("orders.pages", "static")]))
    pages.add_middleware(_PageFrame)
    problem_pages.install(pages)
    api.include_router(_entrance())
    api.mount(ROOT, pages)


def _entrance() -> APIRouter:
    """Whoever asks for the host, or leaves out the last slash, is led to the products."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    @router.get(ROOT)
    async def enter() -> RedirectResponse:
        return RedirectResponse(f"{ROOT}/")

    return router

"""The pages as an application of their own below /shop: their errors are pages, and they are in no API document.

In a sandbox visitors sign in under any name; elsewhere with a token that they were given.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import urlencode

import structlog
from fastapi import APIRouter, Depends, FastAPI, Form, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import telemetry
from orders.api.problem import PAGE_PROBLEM_OF_ERROR, PROBLEM_OF_ERROR
from orders.domain.errors import InsufficientStockError
from orders.pages.buyer_pages import cart_router, orders_router, products_router
from orders.pages.language import Texts
from orders.pages.operator_pages import operator_orders_router, operator_router
from orders.pages.parts import (
    ROOT,
    ForbiddenError,
    NotSignedInError,
    PageError,
    PageParts,
    PartsOf,
    VisitorOf,
    parts_of,
    require_own_site,
)
from orders.pages.visitor import Cart, keep_cart, sign_in, sign_out, visitor_of
from orders.service.payments import PaymentRejectedError
from servicekit.auth import ROLES, TOKEN_MAX_CHARACTERS
from servicekit.errors import ServiceError, StorageUnavailableError
from servicekit.http import problem
from servicekit.http.middleware import request_telemetry
from servicekit.http.problem import COMMON_PROBLEMS, ProblemType
from servicekit.identifiers import ID_PATTERN

# Styles, scripts and images come from here and nowhere else, nothing is inline, and no site frames the shop.
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
# A page is its visitor's own, and a file may change with the next version: both are asked for again, files by their
# tag. A picture is for every visitor, and may be a day old.
_CACHE_CONTROL = "private, no-cache"
_PICTURE_CACHE_CONTROL = "public, max-age=86400"


class _PageFrame:
    """ASGI middleware: the headers of every page, and a page for unexpected errors.

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
            response = unexpected_error(Request(scope), error)
            await response(scope, receive, send_with_headers)


class _Pictures(StaticFiles):
    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers["Cache-Control"] = _PICTURE_CACHE_CONTROL
        return response


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
    for router in (
        products_router, cart_router, orders_router, operator_router, operator_orders_router, session_router,
    ):  # fmt: skip
        pages.include_router(router)
    pages.mount("/static/products", _Pictures(packages=[("orders.pages", "static/products")]))
    pages.mount("/static", StaticFiles(packages=[("orders.pages", "static")]))
    pages.add_middleware(_PageFrame)
    install_problem_pages(pages)
    api.include_router(_entrance())
    api.mount(ROOT, pages)


def _entrance() -> APIRouter:
    """Requests of the bare host, or without the last slash, are led to the products."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    @router.get(ROOT)
    async def enter() -> RedirectResponse:
        return RedirectResponse(f"{ROOT}/")

    return router


PROBLEMS: Mapping[type[ServiceError], ProblemType] = MappingProxyType(
    {**COMMON_PROBLEMS, **PROBLEM_OF_ERROR, **PAGE_PROBLEM_OF_ERROR}
)
_FRAMEWORK_PROBLEMS = {404: problem.NO_SUCH_ROUTE, 405: problem.METHOD_NOT_ALLOWED, 413: problem.BODY_TOO_LARGE}
_SOLD_OUT = "sold-out"
_REJECTED = "payment-rejected"

log = structlog.get_logger(__name__)


def install_problem_pages(app: FastAPI) -> None:
    """Register the handlers of what is expected to go wrong."""
    app.exception_handler(ServiceError)(_service_error)
    app.exception_handler(PaymentRejectedError)(_payment_rejected)
    app.exception_handler(PageError)(_page_error)
    app.exception_handler(NotSignedInError)(_not_signed_in)
    app.exception_handler(RequestValidationError)(_validation_error)
    app.exception_handler(HTTPException)(_framework_error)


def problem_page(
    request: Request, name: str, status: int, detail: str, values: Mapping[str, object] | None = None
) -> Response:
    """The page of the problem `name`; `values` are for the places in its sentence.

    It says what happened in the visitor's language, a way on, and the trace id. The kinds of problems are the API's
    own, so that a page and a program are rejected alike.
    """
    parts = parts_of(request)
    visitor = visitor_of(request, parts.tokens)
    sentence = Texts(visitor.language)(f"problem.{name}", **(values or {}))
    return parts.renderer.page(
        request,
        visitor,
        "problem.html",
        status=status,
        sentence=sentence,
        detail=detail,
        trace_id=telemetry.current_trace_id(),
        order_url=_order_url(request),
        may_repeat=request.method == "GET" and status >= 500,
    )


async def _service_error(request: Request, error: ServiceError) -> Response:
    kind = PROBLEMS.get(type(error))
    if kind is None:
        return unexpected_error(request, error)
    if isinstance(error, InsufficientStockError):
        response = await _too_few(request, kind, error)
    else:
        response = problem_page(request, kind.name, kind.status, str(error))
    if kind.retry_after_s is not None:
        response.headers["Retry-After"] = str(kind.retry_after_s)
    return response


async def _too_few(request: Request, kind: ProblemType, error: InsufficientStockError) -> Response:
    """With the name that the buyer has seen; without the database there is the id."""
    try:
        products = await parts_of(request).baskets.products([error.product_id])
    except StorageUnavailableError:
        products = {}
    product = products.get(error.product_id)
    visitor = visitor_of(request, parts_of(request).tokens)
    name = Texts(visitor.language).product_name(product) if product else error.product_id
    values = {"name": name, "available": error.available}
    return problem_page(request, kind.name if error.available else _SOLD_OUT, kind.status, str(error), values)


async def _payment_rejected(request: Request, error: PaymentRejectedError) -> Response:
    visitor = visitor_of(request, parts_of(request).tokens)
    is_known = Texts(visitor.language).has(f"problem.{error.problem}")
    return problem_page(request, error.problem if is_known else _REJECTED, error.status, str(error))


async def _page_error(request: Request, error: PageError) -> Response:
    return problem_page(request, error.name, error.status, str(error))


async def _not_signed_in(request: Request, _error: NotSignedInError) -> Response:
    """To the page for signing in, and from there back to the page, if it was one that can be asked for."""
    next_path = request.url.path if request.method == "GET" else f"{ROOT}/"
    return RedirectResponse(f"{ROOT}/session?{urlencode({'next': next_path})}", status_code=303)


async def _validation_error(request: Request, error: RequestValidationError) -> Response:
    detail = "; ".join(f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}" for found in error.errors())
    kind = problem.INVALID_REQUEST
    # An id that cannot be one names nothing: to a visitor it is a wrong address.
    if any(found["loc"][0] == "path" for found in error.errors()):
        kind = problem.NO_SUCH_ROUTE
    return problem_page(request, kind.name, kind.status, detail)


async def _framework_error(request: Request, error: HTTPException) -> Response:
    kind = _FRAMEWORK_PROBLEMS.get(error.status_code, problem.MALFORMED_REQUEST)
    response = problem_page(request, kind.name, error.status_code, f"{request.method} {request.url.path}")
    response.headers.update(error.headers or {})
    return response


def unexpected_error(request: Request, error: Exception) -> Response:
    """The page for a mistake of the shop, which goes to the log."""
    log.error("a page failed unexpectedly", method=request.method, path=request.url.path, exc_info=error)
    kind = problem.INTERNAL_ERROR
    return problem_page(request, kind.name, kind.status, "the error is in the log under this trace id")


def _order_url(request: Request) -> str | None:
    """The page of the order that the request was about, unless it is the very page that failed."""
    order_id = request.path_params.get("order_id")
    if order_id is None or request.method == "GET":
        return None
    return str(request.url.path).rpartition("/")[0]


session_router = APIRouter(prefix="/session")

NEXT_MAX = 300


@session_router.get("")
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
        token_command=parts.token_command,
    )


@session_router.post("/sandbox")
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


@session_router.post("/token")
async def sign_in_by_token(
    request: Request,
    parts: PartsOf,
    token: Annotated[str, Form(min_length=1, max_length=TOKEN_MAX_CHARACTERS)],
    next_path: Annotated[str, Form(alias="next", max_length=NEXT_MAX)] = "",
) -> Response:
    parts.tokens.verify(token.strip())
    return _signed_in(request, token.strip(), next_path)


@session_router.post("/end")
async def end(request: Request) -> Response:
    """The cart goes as well: the next visitor at this browser may be another person."""
    response = RedirectResponse(f"{ROOT}/", status_code=303)
    sign_out(response)
    keep_cart(request, response, Cart())
    return response


def _signed_in(request: Request, token: str, next_path: str) -> Response:
    response = RedirectResponse(_own_path(next_path), status_code=303)
    sign_in(request, response, token)
    return response


def _own_path(path: str) -> str:
    """The path if it is one of the shop's pages, else the products: no visitor is led to another site from here."""
    is_own = path.startswith(f"{ROOT}/") and "//" not in path and "\\" not in path and path.isprintable()
    return path if is_own else f"{ROOT}/"

"""Turns whatever a page raises into a page: what happened in the visitor's language, a way on, and the trace id.

The kinds of problems are the API's own, so that a page and a program are refused alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlencode

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

import telemetry
from orders.api.problem import PROBLEM_OF_ERROR
from orders.api.shop_problem import PAGE_PROBLEM_OF_ERROR
from orders.domain.errors import InsufficientStockError
from orders.pages.language import Texts
from orders.pages.parts import ROOT, NotSignedInError, PageError, parts_of
from orders.pages.visitor import visitor_of
from orders.service.payment_desk import PaymentRefusedError
from servicekit.errors import ServiceError, StorageUnavailableError
from servicekit.http import problem
from servicekit.http.problem import COMMON_PROBLEMS, ProblemType

PROBLEMS: Mapping[type[ServiceError], ProblemType] = MappingProxyType(
    {**COMMON_PROBLEMS, **PROBLEM_OF_ERROR, **PAGE_PROBLEM_OF_ERROR}
)
_FRAMEWORK_PROBLEMS = {404: problem.NO_SUCH_ROUTE, 405: problem.METHOD_NOT_ALLOWED, 413: problem.BODY_TOO_LARGE}
_SOLD_OUT = "sold-out"
_REFUSED = "payment-refused"

log = structlog.get_logger(__name__)


def install(app: FastAPI) -> None:
    """Register the handlers of what is expected to go wrong."""
    app.exception_handler(ServiceError)(_service_error)
    app.exception_handler(PaymentRefusedError)(_payment_refused)
    app.exception_handler(PageError)(_page_error)
    app.exception_handler(NotSignedInError)(_not_signed_in)
    app.exception_handler(RequestValidationError)(_validation_error)
    app.exception_handler(HTTPException)(_framework_error)


def problem_page(
    request: Request, name: str, status: int, detail: str, values: Mapping[str, object] | None = None
) -> Response:
    """The page of the problem `name`; `values` are for the places in its sentence."""
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
    values = {"name": product.name if product else error.product_id, "available": error.available}
    return problem_page(request, kind.name if error.available else _SOLD_OUT, kind.status, str(error), values)


async def _payment_refused(request: Request, error: PaymentRefusedError) -> Response:
    visitor = visitor_of(request, parts_of(request).tokens)
    is_known = Texts(visitor.language).has(f"problem.{error.problem}")
    return problem_page(request, error.problem if is_known else _REFUSED, error.status, str(error))


async def _page_error(request: Request, error: PageError) -> Response:
    return problem_page(request, error.name, error.status, str(error))


async def _not_signed_in(request: Request, _error: NotSignedInError) -> Response:
    """To where one signs in, and from there back to the page, if it was one that can be asked for."""
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

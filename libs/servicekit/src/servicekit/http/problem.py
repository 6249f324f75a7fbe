"""Errors as RFC 9457 problems: one table from error to type, status and title. The types are stable; texts may change.

Here are the kinds that any service has; a service adds its own, and hands its table to `build_api`. A problem carries
the trace id of its request, and the members of its error that a program may want to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

import telemetry
from servicekit import auth, errors
from servicekit.errors import ServiceError

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:hourglass:problem:"
CHALLENGE = 'Bearer realm="hourglass"'  # of every 401: RFC 9110, 11.6.1


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A kind of problem. `members` are attributes of the error that the answer repeats; RFC 9457's own are taken."""

    name: str
    status: int
    title: str
    members: tuple[str, ...] = ()
    retry_after_s: int | None = None

    @property
    def uri(self) -> str:
        return TYPE_PREFIX + self.name


INVALID_REQUEST = ProblemType("invalid-request", 422, "The request is not valid")
MALFORMED_REQUEST = ProblemType("malformed-request", 400, "The request cannot be read")
MISSING_IDEMPOTENCY_KEY = ProblemType("missing-idempotency-key", 400, "The Idempotency-Key header is missing")
INVALID_IDEMPOTENCY_KEY = ProblemType("invalid-idempotency-key", 400, "The Idempotency-Key header is not usable")
NO_SUCH_ROUTE = ProblemType("no-such-route", 404, "There is nothing at this address")
UNAUTHENTICATED = ProblemType("unauthenticated", 401, "The request does not say who it comes from")
FORBIDDEN = ProblemType("forbidden", 403, "The caller may not do this")
METHOD_NOT_ALLOWED = ProblemType("method-not-allowed", 405, "This address does not take this method")
PRECONDITION_FAILED = ProblemType("precondition-failed", 412, "The object is in another state than If-Match names")
REQUEST_TIMEOUT = ProblemType("request-timeout", 408, "The request did not arrive in time")
BODY_TOO_LARGE = ProblemType("body-too-large", 413, "The request body is too large")
RATE_LIMITED = ProblemType("rate-limited", 429, "Too many requests")
OVERLOADED = ProblemType("overloaded", 503, "The service has more work than it can do", retry_after_s=1)
INTERNAL_ERROR = ProblemType("internal-error", 500, "The service made a mistake")
KEY_REUSED = ProblemType("idempotency-key-reused", 422, "The idempotency key belongs to another request")
INVALID_CURSOR = ProblemType("invalid-cursor", 422, "The cursor is not valid")
REQUEST_IN_FLIGHT = ProblemType("request-in-flight", 409, "The same request is being carried out", retry_after_s=1)
STORAGE_UNAVAILABLE = ProblemType("storage-unavailable", 503, "The database does not answer", retry_after_s=1)
QUEUE_UNAVAILABLE = ProblemType("queue-unavailable", 503, "The message queue does not answer", retry_after_s=1)
TRANSACTION_GIVEN_UP = ProblemType("transaction-given-up", 503, "The request took too long", retry_after_s=1)

COMMON_PROBLEMS: Mapping[type[errors.ServiceError], ProblemType] = MappingProxyType(
    {
        errors.KeyReusedError: KEY_REUSED,
        errors.InvalidCursorError: INVALID_CURSOR,
        errors.RequestInFlightError: REQUEST_IN_FLIGHT,
        errors.StorageUnavailableError: STORAGE_UNAVAILABLE,
        errors.PublishError: QUEUE_UNAVAILABLE,
        errors.QueueUnreachableError: QUEUE_UNAVAILABLE,
        errors.TransactionGivenUpError: TRANSACTION_GIVEN_UP,
        auth.InvalidTokenError: UNAUTHENTICATED,
    }
)


class FieldError(BaseModel):
    """One thing that is wrong with the request."""

    field: str = Field(
        description="where: body, query, path or header, then the names and positions",
        examples=["body.items.0.quantity"],
    )
    message: str = Field(description="what is allowed", examples=["Input should be greater than or equal to 1"])


class Problem(BaseModel):
    """An error as RFC 9457 describes it. Kinds of problems may have more members."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="stable name of the kind of problem", examples=[TYPE_PREFIX + "invalid-request"])
    title: str = Field(description="the kind of problem for people")
    status: int
    detail: str = Field(description="what happened this time")
    trace_id: str | None = Field(description="the trace of the request, to look it up")
    errors: list[FieldError] | None = Field(default=None, description="of invalid-request: each field that is wrong")


class ProblemError(Exception):
    """A problem that arises in the HTTP layer itself; `members` and `headers` are added to its answer."""

    def __init__(
        self,
        kind: ProblemType,
        detail: str,
        *,
        members: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.members = members
        self.headers = headers


def problem_response(
    kind: ProblemType,
    detail: str,
    members: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The answer for a problem."""
    body: dict[str, Any] = {"type": kind.uri, "title": kind.title, "status": kind.status, "detail": detail}
    body["trace_id"] = telemetry.current_trace_id()
    body.update(members or {})
    all_headers = {"WWW-Authenticate": CHALLENGE} if kind.status == UNAUTHENTICATED.status else {}
    if kind.retry_after_s is not None:
        all_headers["Retry-After"] = str(kind.retry_after_s)
    all_headers.update(headers or {})
    return JSONResponse(body, kind.status, all_headers, media_type=MEDIA_TYPE)


def documented(*kinds: ProblemType) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these problems.

    Those that any route may answer with (401, 403, 429) are added to the document by servicekit.http.application.
    """
    by_status: dict[int | str, list[ProblemType]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {status: _documented_answer(same_status) for status, same_status in by_status.items()}


def _documented_answer(kinds: list[ProblemType]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": "; ".join(f"{kind.title} (`{kind.uri}`)" for kind in kinds),
        "content": {
            MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "examples": {kind.name: {"summary": kind.title, "value": _example(kind)} for kind in kinds},
            }
        },
    }
    headers: dict[str, Any] = {}
    if any(kind.retry_after_s is not None or kind.status == RATE_LIMITED.status for kind in kinds):
        description = "seconds after which the same request may succeed"
        headers["Retry-After"] = {"description": description, "schema": {"type": "integer", "minimum": 0}}
    if any(kind.status == UNAUTHENTICATED.status for kind in kinds):
        headers["WWW-Authenticate"] = {"description": "RFC 6750", "schema": {"type": "string"}}
    return answer | ({"headers": headers} if headers else {})


def _example(kind: ProblemType) -> dict[str, Any]:
    return {
        "type": kind.uri,
        "title": kind.title,
        "status": kind.status,
        "detail": f"{kind.title.lower()}: here is what happened this time",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }


log = structlog.get_logger(__name__)

_FRAMEWORK_PROBLEMS = {
    404: NO_SUCH_ROUTE,
    405: METHOD_NOT_ALLOWED,
    413: BODY_TOO_LARGE,
}


def install_handlers(app: FastAPI, problem_of_error: Mapping[type[ServiceError], ProblemType]) -> None:
    """Turn whatever a route raises into a problem: nothing leaves as text or as a framework's own error shape.

    `problem_of_error` has what the service adds to COMMON_PROBLEMS.
    """
    kinds = {**COMMON_PROBLEMS, **problem_of_error}

    async def service_error(request: Request, error: ServiceError) -> Response:
        kind = kinds.get(type(error))
        if kind is None:
            return await _unexpected_error(request, error)
        return problem_response(kind, str(error), {name: getattr(error, name) for name in kind.members})

    app.exception_handler(ServiceError)(service_error)
    app.exception_handler(ProblemError)(_problem_error)
    app.exception_handler(RequestValidationError)(_validation_error)
    app.exception_handler(HTTPException)(_framework_error)
    app.exception_handler(Exception)(_unexpected_error)


async def _problem_error(_request: Request, error: ProblemError) -> Response:
    return problem_response(error.kind, error.detail, error.members, error.headers)


async def _validation_error(_request: Request, error: RequestValidationError) -> Response:
    fields = [{"field": _path(found["loc"]), "message": found["msg"]} for found in error.errors()]
    kind = INVALID_REQUEST
    if any(found["type"] == "json_invalid" for found in error.errors()):
        kind = MALFORMED_REQUEST
    detail = "; ".join(f"{field['field']}: {field['message']}" for field in fields)
    return problem_response(kind, detail, {"errors": fields})


async def _framework_error(request: Request, error: HTTPException) -> Response:
    kind = _FRAMEWORK_PROBLEMS.get(error.status_code)
    if kind is None:
        # FastAPI raises 400 when a body cannot be decoded at all.
        kind = ProblemType("malformed-request", error.status_code, MALFORMED_REQUEST.title)
    response = problem_response(kind, f"{request.method} {request.url.path}: {error.detail}")
    response.headers.update(error.headers or {})
    return response


async def _unexpected_error(request: Request, error: Exception) -> Response:
    log.error("a request failed unexpectedly", method=request.method, path=request.url.path, exc_info=error)
    return problem_response(INTERNAL_ERROR, "the error is in the log under this trace id")


def _path(location: Sequence[Any]) -> str:
    return ".".join(str(part) for part in location)

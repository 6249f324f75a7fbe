"""Turns whatever a route raises into a problem; nothing leaves as plain text or as a framework's own error shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from servicekit.api import problem
from servicekit.api.problem import COMMON_PROBLEMS, ProblemError, ProblemType, problem_response
from servicekit.errors import ServiceError

log = structlog.get_logger(__name__)

_FRAMEWORK_PROBLEMS = {
    404: problem.NO_SUCH_ROUTE,
    405: problem.METHOD_NOT_ALLOWED,
    413: problem.BODY_TOO_LARGE,
}


def install(app: FastAPI, problem_of_error: Mapping[type[ServiceError], ProblemType]) -> None:
    """Register the handlers; `problem_of_error` has what the service adds to COMMON_PROBLEMS."""
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
    kind = problem.INVALID_REQUEST
    if any(found["type"] == "json_invalid" for found in error.errors()):
        kind = problem.MALFORMED_REQUEST
    detail = "; ".join(f"{field['field']}: {field['message']}" for field in fields)
    return problem_response(kind, detail, {"errors": fields})


async def _framework_error(request: Request, error: HTTPException) -> Response:
    kind = _FRAMEWORK_PROBLEMS.get(error.status_code)
    if kind is None:
        # FastAPI raises 400 when a body cannot be decoded at all.
        kind = ProblemType("malformed-request", error.status_code, problem.MALFORMED_REQUEST.title)
    response = problem_response(kind, f"{request.method} {request.url.path}: {error.detail}")
    response.headers.update(error.headers or {})
    return response


async def _unexpected_error(request: Request, error: Exception) -> Response:
    log.error("a request failed unexpectedly", method=request.method, path=request.url.path, exc_info=error)
    return problem_response(problem.INTERNAL_ERROR, "the error is in the log under this trace id")


def _path(location: Sequence[Any]) -> str:
    return ".".join(str(part) for part in location)

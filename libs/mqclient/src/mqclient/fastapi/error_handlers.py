"""What a route answers that could not send: RFC 9457 problems for the two kinds of errors that are nobody's mistake."""

from __future__ import annotations

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from mqclient.errors import OutcomeUnknownError, RetryableError

logger = logging.getLogger("mqclient.fastapi")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1


def install_error_handlers(app: FastAPI) -> None:
    """Have routes of `app` answer RetryableError with 503 and Retry-After, OutcomeUnknownError with 504.

    The error itself goes to the log, because it may name brokers. Other errors of the queue stay mistakes (500).
    """
    app.add_exception_handler(RetryableError, _not_stored)
    app.add_exception_handler(OutcomeUnknownError, _unknown)


async def _not_stored(request: Request, error: Exception) -> JSONResponse:
    detail = "the message queue has stored nothing; send the same request again"
    return _problem(request, error, HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": str(RETRY_AFTER_S)})


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    detail = "the message queue gave no answer in time: the message may be stored, and it may not"
    return _problem(request, error, HTTPStatus.GATEWAY_TIMEOUT, detail)


def _problem(
    request: Request, error: Exception, status: HTTPStatus, detail: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    logger.warning("%s %s is answered %d: %s", request.method, request.url.path, status, error)
    body = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
    return JSONResponse(body, status, headers, media_type=MEDIA_TYPE)

"""The routes of refunds: what operators give back, and what orders has asked to be given back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response

from payments.api import problem
from payments.api.dependencies import UseCasesOf
from payments.api.payments import RETRY_AFTER_HEADER, RETRY_AFTER_S, PaymentId, Reader
from payments.api.schemas import NewRefund, Paging, RefundAnswer, RefundPage, WantedRefunds
from payments.domain.refund import Refund, RefundStatus
from servicekit.auth import PAYMENTS_ALL, REFUNDS_WRITE, Caller
from servicekit.http import problem as common
from servicekit.http.middleware import requires
from servicekit.http.parameters import (
    ID_PATTERN,
    LOCATION_HEADER,
    REPLAYED_HEADER,
    REPLAYED_HEADER_DOCUMENTED,
    IdempotencyKey,
)
from servicekit.http.problem import documented, problem_response

router = APIRouter(tags=["payments"])

RefundId = Annotated[str, Path(pattern=ID_PATTERN, examples=["refund-5f1c07d2a9b64c0f8a4d1e2b3c4d5e6f"])]
Refunder = Annotated[Caller, Depends(requires(REFUNDS_WRITE))]

_HEADERS = {**LOCATION_HEADER, **REPLAYED_HEADER_DOCUMENTED}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    201: {"description": "The money has gone back", "headers": _HEADERS},
    202: {
        "model": RefundAnswer,
        "description": "The gateway has not given it back yet: look later, or repeat the request with its key",
        "headers": _HEADERS | RETRY_AFTER_HEADER,
    },
}
_RETRY_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The money has gone back, now or before"},
    202: _ANSWERS[202],
}


@router.post(
    "/payments/{payment_id}/refunds",
    status_code=201,
    response_model=RefundAnswer,
    summary="Give money of a payment back",
    responses=_ANSWERS
    | documented(
        common.MISSING_IDEMPOTENCY_KEY,
        common.INVALID_IDEMPOTENCY_KEY,
        common.MALFORMED_REQUEST,
        problem.UNKNOWN_PAYMENT,
        problem.NOT_CAPTURED_YET,
        problem.NOT_REFUNDABLE,
        problem.REFUND_FAILED,
        common.REQUEST_IN_FLIGHT,
        common.BODY_TOO_LARGE,
        common.INVALID_REQUEST,
        problem.REFUND_TOO_LARGE,
        common.KEY_REUSED,
        problem.PAYMENT_CHANGED,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def refund_payment(  # noqa: PLR0917 - FastAPI passes them by name
    payment_id: PaymentId,
    caller: Refunder,
    key: IdempotencyKey,
    new_refund: NewRefund,
    use_cases: UseCasesOf,
    response: Response,
) -> RefundAnswer | Response:
    """A part of the money, or all of it; the refunds of a payment are together never more than it took.

    A request that is repeated with the same Idempotency-Key and payload is answered with what became of the first one,
    and with the header `Idempotency-Replayed: true`. A refused request uses up no key; one that the gateway refused
    does."""
    made = await use_cases.refund_part(new_refund.to_request(payment_id), caller, key)
    headers = {"Location": f"/payments/{payment_id}/refunds"}
    if made.replayed:
        headers[REPLAYED_HEADER] = "true"
    if made.refund.status is RefundStatus.FAILED:
        return _failed(made.refund, headers)
    response.headers.update(headers)
    return _answer(made.refund, response)


@router.post(
    "/payments/{payment_id}/refunds/{refund_id}/retry",
    response_model=RefundAnswer,
    summary="Try a refund again that the gateway has refused",
    responses=_RETRY_ANSWERS
    | documented(
        problem.UNKNOWN_PAYMENT,
        problem.UNKNOWN_REFUND,
        problem.REFUND_FAILED,
        common.INVALID_REQUEST,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def retry_refund(
    payment_id: PaymentId, refund_id: RefundId, caller: Refunder, use_cases: UseCasesOf, response: Response
) -> RefundAnswer | Response:
    """The refund keeps its id, so that no money goes back twice, however often this is asked for."""
    refund = await use_cases.retry_refund(payment_id, refund_id, caller)
    if refund.status is RefundStatus.FAILED:
        return _failed(refund, {"Location": f"/payments/{payment_id}/refunds"})
    return _answer(refund, response)


@router.get(
    "/payments/{payment_id}/refunds",
    summary="The refunds of a payment, newest first",
    responses=documented(
        problem.UNKNOWN_PAYMENT, common.INVALID_REQUEST, common.INVALID_CURSOR, common.STORAGE_UNAVAILABLE
    ),
)
async def list_refunds_of_payment(
    payment_id: PaymentId, caller: Reader, paging: Annotated[Paging, Query()], use_cases: UseCasesOf
) -> RefundPage:
    return RefundPage.of(await use_cases.queries.refunds_of(payment_id, caller, paging.limit, paging.cursor))


@router.get(
    "/refunds",
    summary="The refunds of all payments, newest first",
    dependencies=[Depends(requires(PAYMENTS_ALL))],
    responses=documented(common.INVALID_REQUEST, common.INVALID_CURSOR, common.STORAGE_UNAVAILABLE),
)
async def list_refunds(wanted: Annotated[WantedRefunds, Query()], use_cases: UseCasesOf) -> RefundPage:
    return RefundPage.of(await use_cases.queries.refunds(wanted.status, wanted.limit, wanted.cursor))


def _answer(refund: Refund, response: Response) -> RefundAnswer:
    if refund.status is RefundStatus.REQUESTED:
        response.status_code = 202
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return RefundAnswer.of(refund)


def _failed(refund: Refund, headers: dict[str, str]) -> Response:
    detail = f"refund {refund.refund_id!r} is kept and can be tried again: {refund.failure}"
    members = {"payment_id": refund.payment_id, "refund_id": refund.refund_id, "failure": refund.failure}
    return problem_response(problem.REFUND_FAILED, detail, members, headers)

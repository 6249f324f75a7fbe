"""The routes of payments: paying and reading. What goes back is in refunds.py."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response

from payments.api import problem
from payments.api.dependencies import UseCasesOf
from payments.api.schemas import (
    NewPayment,
    PaymentAnswer,
    PaymentHistory,
    PaymentMethods,
    PaymentPage,
    StatusChangeAnswer,
    WantedPayments,
)
from payments.domain.payment import Payment, PaymentMethod
from payments.domain.payment_status import PaymentStatus
from servicekit.auth import PAYMENTS_READ, PAYMENTS_WRITE, Caller
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

router = APIRouter(prefix="/payments", tags=["payments"])

PaymentId = Annotated[str, Path(pattern=ID_PATTERN, examples=["5f1c07d2a9b64c0f8a4d1e2b3c4d5e6f"])]
Buyer = Annotated[Caller, Depends(requires(PAYMENTS_WRITE))]
Reader = Annotated[Caller, Depends(requires(PAYMENTS_READ))]

RETRY_AFTER_S = 1
RETRY_AFTER_HEADER: dict[str, Any] = {
    "Retry-After": {"description": "in how many seconds to look again", "schema": {"type": "integer"}}
}
_HEADERS = {**LOCATION_HEADER, **REPLAYED_HEADER_DOCUMENTED}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    201: {"description": "The money was taken, and the order's service will be told", "headers": _HEADERS},
    202: {
        "model": PaymentAnswer,
        "description": "Not decided yet: the gateway takes its time, or orders does not answer, and nothing is captured"
        " before it does. Look later, or repeat the request with its key",
        "headers": _HEADERS | RETRY_AFTER_HEADER,
    },
}


@router.post(
    "",
    status_code=201,
    response_model=PaymentAnswer,
    summary="Pay an order",
    responses=_ANSWERS
    | documented(
        common.MISSING_IDEMPOTENCY_KEY,
        common.INVALID_IDEMPOTENCY_KEY,
        common.MALFORMED_REQUEST,
        problem.PAYMENT_DECLINED,
        problem.UNKNOWN_ORDER,
        problem.ORDER_CLOSED,
        problem.ALREADY_PAID,
        problem.PAYMENT_IN_PROGRESS,
        common.REQUEST_IN_FLIGHT,
        common.BODY_TOO_LARGE,
        common.INVALID_REQUEST,
        problem.WRONG_AMOUNT,
        problem.WRONG_CURRENCY,
        common.KEY_REUSED,
        common.STORAGE_UNAVAILABLE,
        common.QUEUE_UNAVAILABLE,
    ),
)
async def pay_order(
    caller: Buyer, key: IdempotencyKey, new_payment: NewPayment, use_cases: UseCasesOf, response: Response
) -> PaymentAnswer | Response:
    """The buyer is whoever the token speaks for; another buyer's order is answered as one that is not known.

    A request that is repeated with the same Idempotency-Key and payload is answered with what became of the first one,
    and with the header `Idempotency-Replayed: true`. A refused request uses up no key; a declined one does."""
    paid = await use_cases.pay_order(new_payment.to_request(caller.subject), key)
    payment = paid.payment
    headers = {"Location": f"/payments/{payment.payment_id}"}
    if paid.replayed:
        headers[REPLAYED_HEADER] = "true"
    if payment.status is PaymentStatus.DECLINED:
        return _declined(payment, headers)
    if payment.status is PaymentStatus.CREATED:
        response.status_code = 202
        headers["Retry-After"] = str(RETRY_AFTER_S)
    response.headers.update(headers)
    return PaymentAnswer.of(payment)


@router.get(
    "",
    summary="List payments, newest first",
    responses=documented(common.INVALID_REQUEST, common.INVALID_CURSOR, common.STORAGE_UNAVAILABLE),
)
async def list_payments(
    caller: Reader, wanted: Annotated[WantedPayments, Query()], use_cases: UseCasesOf
) -> PaymentPage:
    """Own payments; with the scope `payments:all` those of every buyer. In pages: `next_cursor` of one is `cursor` of
    the next, and null on the last."""
    return PaymentPage.of(await use_cases.queries.payments(wanted.filter(), caller, wanted.limit, wanted.cursor))


@router.get("/methods", summary="How an order can be paid", dependencies=[Depends(requires(PAYMENTS_READ))])
async def get_payment_methods() -> PaymentMethods:
    return PaymentMethods(methods=list(PaymentMethod))


@router.get(
    "/{payment_id}",
    summary="One payment",
    responses=documented(problem.UNKNOWN_PAYMENT, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_payment(payment_id: PaymentId, caller: Reader, use_cases: UseCasesOf) -> PaymentAnswer:
    """A payment of another buyer is answered as one that does not exist, unless the token has `payments:all`."""
    return PaymentAnswer.of(await use_cases.queries.payment(payment_id, caller))


@router.get(
    "/{payment_id}/history",
    summary="Every change of a payment's status, oldest first",
    responses=documented(problem.UNKNOWN_PAYMENT, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_payment_history(payment_id: PaymentId, caller: Reader, use_cases: UseCasesOf) -> PaymentHistory:
    changes = await use_cases.queries.history(payment_id, caller)
    return PaymentHistory(payment_id=payment_id, changes=[StatusChangeAnswer.of(change) for change in changes])


def _declined(payment: Payment, headers: dict[str, str]) -> Response:
    return problem_response(
        problem.PAYMENT_DECLINED,
        f"the gateway declined payment {payment.payment_id!r}: {payment.decline_reason}; a new try needs a new key",
        {"payment_id": payment.payment_id, "order_id": payment.order_id, "decline_reason": payment.decline_reason},
        headers,
    )

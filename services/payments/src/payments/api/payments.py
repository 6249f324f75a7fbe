"""The routes of payments."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from payments.api import problem
from payments.api.dependencies import UseCasesOf
from payments.api.schemas import NewPayment, PaymentAnswer, PaymentHistory, PaymentPageAnswer, StatusChangeAnswer
from payments.domain.payment import Payment
from payments.domain.payment_status import PaymentStatus
from servicekit.api import problem as common
from servicekit.api.idempotency_key import REPLAYED_HEADER, IdempotencyKey
from servicekit.api.problem import documented, problem_response
from servicekit.api.schemas import ID_PATTERN, PAGE_DEFAULT, Cursor, Limit

router = APIRouter(prefix="/payments", tags=["payments"])

PaymentId = Annotated[str, Path(pattern=ID_PATTERN)]


_ANSWERS: dict[int | str, dict[str, Any]] = {
    201: {"description": "The money was taken, and the order's service will be told"},
    202: {"model": PaymentAnswer, "description": "In progress: repeat the request with its key, or look later"},
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
        problem.ANOTHER_BUYERS_ORDER,
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
    key: IdempotencyKey, new_payment: NewPayment, use_cases: UseCasesOf, response: Response
) -> PaymentAnswer | Response:
    """A request that is repeated with the same Idempotency-Key and payload is answered with what became of the first
    one, and with the header `Idempotency-Replayed: true`. A refused request uses up no key; a declined one does."""
    paid = await use_cases.pay_order(new_payment.to_request(), key)
    payment = paid.payment
    headers = {"Location": f"/payments/{payment.payment_id}"}
    if paid.replayed:
        headers[REPLAYED_HEADER] = "true"
    if payment.status is PaymentStatus.DECLINED:
        declined = _declined(payment)
        declined.headers.update(headers)
        return declined
    if payment.status is PaymentStatus.CREATED:
        response.status_code = 202
        headers["Retry-After"] = "1"
    response.headers.update(headers)
    return PaymentAnswer.of(payment)


@router.get(
    "",
    summary="List payments, newest first",
    responses=documented(common.INVALID_REQUEST, common.INVALID_CURSOR, common.STORAGE_UNAVAILABLE),
)
async def list_payments(
    use_cases: UseCasesOf,
    order_id: Annotated[str | None, Query(pattern=ID_PATTERN)] = None,
    limit: Annotated[Limit, Query()] = PAGE_DEFAULT,
    cursor: Annotated[Cursor | None, Query()] = None,
) -> PaymentPageAnswer:
    return PaymentPageAnswer.of(await use_cases.queries.payments(order_id, limit, cursor))


@router.get(
    "/{payment_id}",
    summary="One payment",
    responses=documented(problem.UNKNOWN_PAYMENT, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_payment(payment_id: PaymentId, use_cases: UseCasesOf) -> PaymentAnswer:
    return PaymentAnswer.of(await use_cases.queries.payment(payment_id))


@router.get(
    "/{payment_id}/history",
    summary="Every change of a payment's status, oldest first",
    responses=documented(problem.UNKNOWN_PAYMENT, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_history(payment_id: PaymentId, use_cases: UseCasesOf) -> PaymentHistory:
    changes = await use_cases.queries.history(payment_id)
    return PaymentHistory(payment_id=payment_id, changes=[StatusChangeAnswer.of(change) for change in changes])


def _declined(payment: Payment) -> Response:
    return problem_response(
        problem.PAYMENT_DECLINED,
        f"the gateway declined payment {payment.payment_id!r}: {payment.decline_reason}; a new try needs a new key",
        {"payment_id": payment.payment_id, "order_id": payment.order_id, "decline_reason": payment.decline_reason},
    )

"""The routes: paying and reading, refunds, what payments has heard of orders, statistics.

Refunds are what operators give back, and what orders has asked to be given back. Orders compares what payments has
heard of its orders with its own books.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from payments.api import problem
from payments.api.schemas import (
    NewPayment,
    NewRefund,
    Paging,
    PayableOrderAnswer,
    PayableOrders,
    PaymentAnswer,
    PaymentHistory,
    PaymentMethods,
    PaymentPage,
    RefundAnswer,
    RefundPage,
    StatisticsAnswer,
    StatusChangeAnswer,
    WantedOrders,
    WantedPayments,
    WantedRefunds,
)
from payments.domain.payment import Payment, PaymentMethod, PaymentStatus
from payments.domain.refund import Refund, RefundStatus
from payments.service.pay_order import PayOrder
from payments.service.queries import Queries
from payments.service.receive_event import ReceiveEvent, WebhookSignatures
from payments.service.refund_payment import RefundPart, RetryRefund
from servicekit.auth import PAYMENTS_ALL, PAYMENTS_READ, PAYMENTS_WRITE, REFUNDS_WRITE, STATISTICS_READ, Caller
from servicekit.http import problem as common
from servicekit.http.middleware import requires
from servicekit.http.parameters import LOCATION_HEADER, REPLAYED_HEADER, REPLAYED_HEADER_DOCUMENTED, IdempotencyKey
from servicekit.http.problem import documented, problem_response
from servicekit.identifiers import ID_PATTERN


@dataclass(frozen=True, slots=True)
class UseCases:
    """Everything that the routes can do; `signatures` tells the gateway's requests from others."""

    pay_order: PayOrder
    refund_part: RefundPart
    retry_refund: RetryRefund
    receive_event: ReceiveEvent
    signatures: WebhookSignatures
    queries: Queries


async def _use_cases(request: Request) -> UseCases:  # async, because FastAPI hands a plain function to a thread
    return cast(UseCases, request.app.state.use_cases)


UseCasesOf = Annotated[UseCases, Depends(_use_cases)]


payments_router = APIRouter(prefix="/payments", tags=["payments"])

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


@payments_router.post(
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
    """The buyer is the token's subject; another buyer's order is answered as one that is not known.

    A request that is repeated with the same Idempotency-Key and payload is answered with what became of the first one,
    and with the header `Idempotency-Replayed: true`. A rejected request uses up no key; a declined one does."""
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


@payments_router.get(
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


@payments_router.get("/methods", summary="How an order can be paid", dependencies=[Depends(requires(PAYMENTS_READ))])
async def get_payment_methods() -> PaymentMethods:
    return PaymentMethods(methods=list(PaymentMethod))


@payments_router.get(
    "/{payment_id}",
    summary="One payment",
    responses=documented(problem.UNKNOWN_PAYMENT, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_payment(payment_id: PaymentId, caller: Reader, use_cases: UseCasesOf) -> PaymentAnswer:
    """A payment of another buyer is answered as one that does not exist, unless the token has `payments:all`."""
    return PaymentAnswer.of(await use_cases.queries.payment(payment_id, caller))


@payments_router.get(
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


refunds_router = APIRouter(tags=["payments"])

RefundId = Annotated[str, Path(pattern=ID_PATTERN, examples=["refund-5f1c07d2a9b64c0f8a4d1e2b3c4d5e6f"])]
Refunder = Annotated[Caller, Depends(requires(REFUNDS_WRITE))]

_REFUND_ANSWERS: dict[int | str, dict[str, Any]] = {
    201: {"description": "The money has gone back", "headers": _HEADERS},
    202: {
        "model": RefundAnswer,
        "description": "The gateway has not given it back yet: look later, or repeat the request with its key",
        "headers": _HEADERS | RETRY_AFTER_HEADER,
    },
}
_RETRY_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The money has gone back, now or before"},
    202: _REFUND_ANSWERS[202],
}


@refunds_router.post(
    "/payments/{payment_id}/refunds",
    status_code=201,
    response_model=RefundAnswer,
    summary="Give money of a payment back",
    responses=_REFUND_ANSWERS
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
    and with the header `Idempotency-Replayed: true`. A rejected request uses up no key; one that the gateway rejected
    does."""
    made = await use_cases.refund_part(new_refund.to_request(payment_id), caller, key)
    headers = {"Location": f"/payments/{payment_id}/refunds"}
    if made.replayed:
        headers[REPLAYED_HEADER] = "true"
    if made.refund.status is RefundStatus.FAILED:
        return _failed(made.refund, headers)
    response.headers.update(headers)
    return _answer(made.refund, response)


@refunds_router.post(
    "/payments/{payment_id}/refunds/{refund_id}/retry",
    response_model=RefundAnswer,
    summary="Try a refund again that the gateway has rejected",
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


@refunds_router.get(
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


@refunds_router.get(
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


payable_orders_router = APIRouter(tags=["payments"])


@payable_orders_router.get(
    "/payable-orders",
    summary="Whether these orders can be paid, as far as payments has heard",
    dependencies=[Depends(requires(PAYMENTS_ALL))],
    responses=documented(common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def list_payable_orders(wanted: Annotated[WantedOrders, Query()], use_cases: UseCasesOf) -> PayableOrders:
    """An order that no event has told of is left out."""
    found = await use_cases.queries.payable_orders(wanted.order_id)
    return PayableOrders(items=[PayableOrderAnswer(order_id=one.order_id, status=one.status) for one in found])


operations_router = APIRouter(tags=["operations"])


@operations_router.get(
    "/statistics",
    summary="Payments by status, the ledger, the gateway's events, and the gateway's own book",
    dependencies=[Depends(requires(STATISTICS_READ))],
    responses=documented(common.STORAGE_UNAVAILABLE, problem.GATEWAY_UNAVAILABLE),
)
async def get_statistics(use_cases: UseCasesOf) -> StatisticsAnswer:
    """All numbers of the service are of one moment; those of the gateway are of a moment later."""
    return StatisticsAnswer.of(await use_cases.queries.statistics())

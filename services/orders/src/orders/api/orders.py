"""The routes of orders."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from orders.api import problem
from orders.api.dependencies import UseCasesOf
from orders.api.schemas import NewOrder, OrderAnswer, OrderHistory, OrderPage, StatusChangeAnswer
from orders.domain.order_status import OrderStatus
from orders.service.unit_of_work import OrderFilter
from servicekit.api import problem as common
from servicekit.api.idempotency_key import REPLAYED_HEADER, IdempotencyKey
from servicekit.api.problem import documented
from servicekit.api.schemas import ID_PATTERN, PAGE_DEFAULT, Cursor, Limit

router = APIRouter(prefix="/orders", tags=["orders"])

OrderId = Annotated[str, Path(pattern=ID_PATTERN)]


@router.post(
    "",
    status_code=201,
    summary="Place an order; its units are reserved until it is paid or closes",
    responses=documented(
        common.MISSING_IDEMPOTENCY_KEY,
        common.INVALID_IDEMPOTENCY_KEY,
        common.MALFORMED_REQUEST,
        problem.UNKNOWN_PRODUCT,
        problem.INSUFFICIENT_STOCK,
        common.REQUEST_IN_FLIGHT,
        common.INVALID_REQUEST,
        problem.MIXED_CURRENCIES,
        common.KEY_REUSED,
        common.BODY_TOO_LARGE,
        common.QUEUE_UNAVAILABLE,
        common.TRANSACTION_GIVEN_UP,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def place_order(
    key: IdempotencyKey, new_order: NewOrder, use_cases: UseCasesOf, response: Response
) -> OrderAnswer:
    """A request that is repeated with the same Idempotency-Key and payload is answered with the order that the first
    one made, as it was then, and with the header `Idempotency-Replayed: true`. A refused request uses up no key."""
    placed = await use_cases.place_order(new_order.to_request(), key)
    response.headers["Location"] = f"/orders/{placed.order.order_id}"
    if placed.replayed:
        response.headers[REPLAYED_HEADER] = "true"
    return OrderAnswer.of(placed.order)


@router.get(
    "",
    summary="List orders, newest first",
    responses=documented(common.INVALID_REQUEST, common.INVALID_CURSOR, common.STORAGE_UNAVAILABLE),
)
async def list_orders(
    use_cases: UseCasesOf,
    buyer_id: Annotated[str | None, Query(pattern=ID_PATTERN)] = None,
    status: Annotated[OrderStatus | None, Query()] = None,
    limit: Annotated[Limit, Query()] = PAGE_DEFAULT,
    cursor: Annotated[Cursor | None, Query()] = None,
) -> OrderPage:
    return OrderPage.of(await use_cases.queries.orders(OrderFilter(buyer_id, status), limit, cursor))


@router.get(
    "/{order_id}",
    summary="One order",
    responses=documented(problem.UNKNOWN_ORDER, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_order(order_id: OrderId, use_cases: UseCasesOf) -> OrderAnswer:
    return OrderAnswer.of(await use_cases.queries.order(order_id))


@router.get(
    "/{order_id}/history",
    summary="Every change of an order's status, oldest first",
    responses=documented(problem.UNKNOWN_ORDER, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_history(order_id: OrderId, use_cases: UseCasesOf) -> OrderHistory:
    changes = await use_cases.queries.history(order_id)
    return OrderHistory(order_id=order_id, changes=[StatusChangeAnswer.of(change) for change in changes])


@router.post(
    "/{order_id}/cancel",
    summary="Close an order that waits for its payment",
    responses=documented(
        problem.UNKNOWN_ORDER,
        problem.ILLEGAL_TRANSITION,
        problem.STATUS_CHANGED,
        common.INVALID_REQUEST,
        common.QUEUE_UNAVAILABLE,
        common.TRANSACTION_GIVEN_UP,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def cancel_order(order_id: OrderId, use_cases: UseCasesOf) -> OrderAnswer:
    return OrderAnswer.of(await use_cases.close_order.cancel(order_id))

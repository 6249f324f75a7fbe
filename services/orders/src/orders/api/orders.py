"""The routes of orders: placing and reading. What happens to them afterwards is in order_commands.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from orders.api import problem
from orders.api.dependencies import UseCasesOf
from orders.api.order_version import tag_of
from orders.api.schemas import NewOrder, OrderAnswer, OrderHistory, OrderPage, StatusChangeAnswer, WantedOrders
from servicekit.api import problem as common
from servicekit.api.etag import ETAG_HEADER, NOT_MODIFIED, IfNoneMatch
from servicekit.api.idempotency_key import REPLAYED_HEADER, REPLAYED_HEADER_DOCUMENTED, IdempotencyKey
from servicekit.api.problem import documented
from servicekit.api.schemas import ID_PATTERN, LOCATION_HEADER
from servicekit.api.security import requires
from servicekit.auth import ORDERS_ALL, ORDERS_READ, ORDERS_WRITE, Caller

router = APIRouter(prefix="/orders", tags=["orders"])

OrderId = Annotated[str, Path(pattern=ID_PATTERN, examples=["8e03978e40d543e8bc936894a57f9324"])]
Buyer = Annotated[Caller, Depends(requires(ORDERS_WRITE))]
Reader = Annotated[Caller, Depends(requires(ORDERS_READ))]

# A cache asks before it shows an order again, and nobody else's cache keeps it.
CACHE_CONTROL = "private, no-cache"


@router.post(
    "",
    status_code=201,
    summary="Place an order",
    response_description="The order, or the one that the same key placed before, as it was then",
    responses={
        201: {"headers": {**LOCATION_HEADER, **ETAG_HEADER, **REPLAYED_HEADER_DOCUMENTED}},
        **documented(
            common.MISSING_IDEMPOTENCY_KEY,
            common.INVALID_IDEMPOTENCY_KEY,
            common.MALFORMED_REQUEST,
            problem.UNKNOWN_PRODUCT,
            problem.SALE_ENDED,
            problem.INSUFFICIENT_STOCK,
            problem.PRICE_CHANGED,
            common.REQUEST_IN_FLIGHT,
            common.INVALID_REQUEST,
            problem.MIXED_CURRENCIES,
            common.KEY_REUSED,
            common.BODY_TOO_LARGE,
            common.QUEUE_UNAVAILABLE,
            common.TRANSACTION_GIVEN_UP,
            common.STORAGE_UNAVAILABLE,
        ),
    },
)
async def place_order(
    caller: Buyer, key: IdempotencyKey, new_order: NewOrder, use_cases: UseCasesOf, response: Response
) -> OrderAnswer:
    """The buyer is whoever the token speaks for. Units are reserved until the order is paid or closes.

    A request that is repeated with the same Idempotency-Key and payload is answered with the order that the first one
    made, as it was then, and with the header `Idempotency-Replayed: true`. A refused request uses up no key."""
    placed = await use_cases.place_order(
        new_order.to_request(caller.subject), key, expected_total_minor=new_order.expected_total_minor
    )
    response.headers["Location"] = f"/orders/{placed.order.order_id}"
    response.headers["ETag"] = tag_of(placed.order)
    if placed.replayed:
        response.headers[REPLAYED_HEADER] = "true"
    return OrderAnswer.of(placed.order)


@router.get(
    "",
    summary="List orders, newest first",
    responses=documented(common.INVALID_REQUEST, common.INVALID_CURSOR, common.STORAGE_UNAVAILABLE),
)
async def list_orders(caller: Reader, wanted: Annotated[WantedOrders, Query()], use_cases: UseCasesOf) -> OrderPage:
    """Own orders; with the scope `orders:all` those of every buyer. In pages: `next_cursor` of one is `cursor` of the
    next, and null on the last. What is placed meanwhile comes before the first page, and moves nothing."""
    orders = wanted.filter()
    if not caller.has(ORDERS_ALL):
        if orders.buyer_id not in (None, caller.subject):
            return OrderPage(items=[], next_cursor=None)  # as if that buyer had none
        orders = replace(orders, buyer_id=caller.subject)
    return OrderPage.of(await use_cases.queries.orders(orders, wanted.limit, wanted.cursor))


@router.get(
    "/{order_id}",
    summary="One order",
    response_model=OrderAnswer,
    responses={
        200: {"headers": ETAG_HEADER},
        **NOT_MODIFIED,
        **documented(
            problem.UNKNOWN_ORDER, common.MALFORMED_REQUEST, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE
        ),
    },
)
async def get_order(
    order_id: OrderId, caller: Reader, condition: IfNoneMatch, use_cases: UseCasesOf, response: Response
) -> OrderAnswer | Response:
    """An order of another buyer is answered as one that does not exist, unless the token has `orders:all`.

    With If-None-Match the answer is 304 as long as nothing has changed."""
    order = await use_cases.queries.order(order_id, caller)
    tag = tag_of(order)
    headers = {"ETag": tag, "Cache-Control": CACHE_CONTROL}
    if condition.is_known(tag):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return OrderAnswer.of(order)


@router.get(
    "/{order_id}/history",
    summary="Every change of an order's status, oldest first",
    responses=documented(problem.UNKNOWN_ORDER, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_order_history(order_id: OrderId, caller: Reader, use_cases: UseCasesOf) -> OrderHistory:
    """Who changed it and why, and the trace in which it happened."""
    changes = await use_cases.queries.history(order_id, caller)
    return OrderHistory(order_id=order_id, changes=[StatusChangeAnswer.of(change) for change in changes])

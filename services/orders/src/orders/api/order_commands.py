"""The routes that change an order which was placed: cancel, ship, confirm.

Each takes If-Match: with the ETag of the order as the caller has seen it, the command is carried out in that state or
not at all. Without it the order's status decides, and an order in another status is refused all the same. A command
that its caller has carried out before is answered as then, so that it can be sent again when its answer was lost.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from orders.api import problem
from orders.api.dependencies import UseCasesOf
from orders.api.order_version import tag_of, wanted_version
from orders.api.orders import OrderId
from orders.api.schemas import OrderAnswer
from orders.domain.order import Order
from servicekit.api import problem as common
from servicekit.api.etag import ETAG_HEADER, IfMatch
from servicekit.api.problem import documented
from servicekit.api.security import requires
from servicekit.auth import ORDERS_SHIP, ORDERS_WRITE, Caller

router = APIRouter(prefix="/orders/{order_id}", tags=["orders"])

Buyer = Annotated[Caller, Depends(requires(ORDERS_WRITE))]
Seller = Annotated[Caller, Depends(requires(ORDERS_SHIP))]
BuyerOrSeller = Annotated[Caller, Depends(requires(ORDERS_WRITE, ORDERS_SHIP))]

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"headers": ETAG_HEADER},
    **documented(
        common.MALFORMED_REQUEST,
        problem.UNKNOWN_ORDER,
        problem.ILLEGAL_TRANSITION,
        problem.ORDER_HELD,
        problem.STATUS_CHANGED,
        common.PRECONDITION_FAILED,
        common.INVALID_REQUEST,
        common.QUEUE_UNAVAILABLE,
        common.TRANSACTION_GIVEN_UP,
        common.STORAGE_UNAVAILABLE,
    ),
}


@router.post(
    "/cancel",
    summary="Cancel an order",
    response_description="The order, closed",
    responses=_RESPONSES,
)
async def cancel_order(
    order_id: OrderId, caller: BuyerOrSeller, if_match: IfMatch, use_cases: UseCasesOf, response: Response
) -> OrderAnswer:
    """Its buyer cancels an order that waits for its payment; whoever has `orders:ship` one that was paid, too, and the
    money goes back. The units are on sale again.

    While a payment of the order is in progress, which may have taken the money, the answer is 409 `order-held`."""
    version = await wanted_version(if_match, order_id, caller, use_cases.queries)
    return _answer(await use_cases.close_order.cancel(order_id, caller, version), response)


@router.post(
    "/ship",
    summary="Say that an order is on its way",
    response_description="The order, shipped",
    responses=_RESPONSES,
)
async def ship_order(
    order_id: OrderId, caller: Seller, if_match: IfMatch, use_cases: UseCasesOf, response: Response
) -> OrderAnswer:
    """For an order that is paid. Its buyer confirms the receipt, or it is completed by itself some days later."""
    version = await wanted_version(if_match, order_id, caller, use_cases.queries)
    return _answer(await use_cases.ship_order(order_id, caller, version), response)


@router.post(
    "/confirm",
    summary="Confirm the receipt of an order",
    response_description="The order, completed",
    responses=_RESPONSES,
)
async def confirm_order(
    order_id: OrderId, caller: Buyer, if_match: IfMatch, use_cases: UseCasesOf, response: Response
) -> OrderAnswer:
    """Only its buyer confirms, once it is shipped."""
    version = await wanted_version(if_match, order_id, caller, use_cases.queries)
    return _answer(await use_cases.confirm_receipt(order_id, caller, version), response)


def _answer(order: Order, response: Response) -> OrderAnswer:
    response.headers["ETag"] = tag_of(order)
    return OrderAnswer.of(order)

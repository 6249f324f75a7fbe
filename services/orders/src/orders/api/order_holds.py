"""The routes by which payments holds an order while it takes the money (ADR 122)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from orders.api import problem
from orders.api.dependencies import UseCasesOf
from orders.api.orders import OrderId
from orders.api.schemas import HoldAnswer
from servicekit.api import problem as common
from servicekit.api.problem import documented
from servicekit.api.schemas import ID_PATTERN
from servicekit.api.security import requires
from servicekit.auth import ORDERS_HOLD, Caller

router = APIRouter(prefix="/orders/{order_id}/holds/{payment_id}", tags=["orders"])

PaymentId = Annotated[str, Path(pattern=ID_PATTERN, examples=["5f1c07d2a9b64c0f8a4d1e2b3c4d5e6f"])]
Holder = Annotated[Caller, Depends(requires(ORDERS_HOLD))]


@router.put(
    "",
    summary="Hold an order for a payment",
    response_description="The hold, taken or prolonged",
    responses=documented(
        problem.UNKNOWN_ORDER,
        problem.ORDER_NOT_PAYABLE,
        problem.ORDER_HELD,
        common.INVALID_REQUEST,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def hold_order(order_id: OrderId, payment_id: PaymentId, caller: Holder, use_cases: UseCasesOf) -> HoldAnswer:
    """Before a payment is begun, by the service that takes the money, with a token for the order's buyer.

    While the order is held it is neither closed nor cancelled. A hold lasts 30 s, can be taken again by its payment,
    and ends 10 minutes after the order's expiry at the latest. The first one is taken before the expiry."""
    hold = await use_cases.hold_order.take(order_id, payment_id, caller)
    return HoldAnswer(order_id=order_id, payment_id=payment_id, held_until_ms=hold.until_ms)


@router.delete(
    "",
    status_code=204,
    summary="Let an order go",
    responses=documented(
        problem.UNKNOWN_ORDER, problem.STATUS_CHANGED, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE
    ),
)
async def release_order(order_id: OrderId, payment_id: PaymentId, caller: Holder, use_cases: UseCasesOf) -> None:
    """Of a payment that was declined. If another payment, or none, holds the order, nothing changes."""
    await use_cases.hold_order.release(order_id, payment_id, caller)

"""What payments has heard of orders; for orders, which compares it with its own books."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from payments.api.dependencies import UseCasesOf
from payments.api.schemas import PayableOrderAnswer, PayableOrders, WantedOrders
from servicekit.auth import PAYMENTS_ALL
from servicekit.http import problem as common
from servicekit.http.middleware import requires
from servicekit.http.problem import documented

router = APIRouter(tags=["payments"])


@router.get(
    "/payable-orders",
    summary="Whether these orders can be paid, as far as payments has heard",
    dependencies=[Depends(requires(PAYMENTS_ALL))],
    responses=documented(common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def list_payable_orders(wanted: Annotated[WantedOrders, Query()], use_cases: UseCasesOf) -> PayableOrders:
    """An order that no event has told of is left out."""
    found = await use_cases.queries.payable_orders(wanted.order_id)
    return PayableOrders(items=[PayableOrderAnswer(order_id=one.order_id, status=one.status) for one in found])

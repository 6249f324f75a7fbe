"""The routes of refunds."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from sandbox_gateway.api import problem
from sandbox_gateway.api.dependencies import UseCasesOf, check_api_key
from sandbox_gateway.api.schemas import REFUND_ID_PATTERN, NewRefund, RefundAnswer
from servicekit.api import problem as common
from servicekit.api.problem import documented

router = APIRouter(prefix="/v1/refunds", tags=["refunds"], dependencies=[Depends(check_api_key)])


@router.post(
    "",
    status_code=202,
    summary="Give money of a captured charge back, once for each refund_id",
    responses=documented(
        common.MALFORMED_REQUEST,
        problem.OTHER_TERMS,
        common.BODY_TOO_LARGE,
        common.INVALID_REQUEST,
        problem.NOT_REFUNDABLE,
        problem.WRITTEN_MEANWHILE,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def refund(new_refund: NewRefund, use_cases: UseCasesOf) -> RefundAnswer:
    """Several refunds of a charge are taken until its whole amount is given back."""
    return RefundAnswer.of(await use_cases.gateway.refund(new_refund.to_terms()))


@router.get(
    "/{refund_id}",
    summary="What became of a refund",
    responses=documented(problem.UNKNOWN_REFUND, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_refund(refund_id: Annotated[str, Path(pattern=REFUND_ID_PATTERN)], use_cases: UseCasesOf) -> RefundAnswer:
    return RefundAnswer.of(await use_cases.gateway.find_refund(refund_id))

"""The routes of charges."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from sandbox_gateway.api import problem
from sandbox_gateway.api.dependencies import UseCasesOf, check_api_key
from sandbox_gateway.api.schemas import ChargeAnswer, NewCharge
from servicekit.api import problem as common
from servicekit.api.problem import documented
from servicekit.api.schemas import ID_PATTERN

router = APIRouter(prefix="/v1/charges", tags=["charges"], dependencies=[Depends(check_api_key)])


@router.post(
    "",
    status_code=202,
    summary="Take money, once for each charge_id",
    responses=documented(
        common.MALFORMED_REQUEST,
        problem.OTHER_TERMS,
        common.BODY_TOO_LARGE,
        common.INVALID_REQUEST,
        problem.WRITTEN_MEANWHILE,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def charge(new_charge: NewCharge, use_cases: UseCasesOf) -> ChargeAnswer:
    """The decision is told by a webhook; whoever repeats the request, or asks for the charge, sees it too."""
    return ChargeAnswer.of(await use_cases.gateway.charge(new_charge.to_terms()))


@router.get(
    "/{charge_id}",
    summary="What became of a charge",
    responses=documented(problem.UNKNOWN_CHARGE, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_charge(charge_id: Annotated[str, Path(pattern=ID_PATTERN)], use_cases: UseCasesOf) -> ChargeAnswer:
    return ChargeAnswer.of(await use_cases.gateway.find_charge(charge_id))

"""The route for those who run the service: statistics. Health comes from servicekit."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from payments.api import problem
from payments.api.dependencies import UseCasesOf
from payments.api.schemas import StatisticsAnswer
from servicekit.auth import STATISTICS_READ
from servicekit.http import problem as common
from servicekit.http.middleware import requires
from servicekit.http.problem import documented

router = APIRouter(tags=["operations"])


@router.get(
    "/statistics",
    summary="Payments by status, the ledger, the gateway's events, and the gateway's own book",
    dependencies=[Depends(requires(STATISTICS_READ))],
    responses=documented(common.STORAGE_UNAVAILABLE, problem.GATEWAY_UNAVAILABLE),
)
async def get_statistics(use_cases: UseCasesOf) -> StatisticsAnswer:
    """All numbers of the service are of one moment; those of the gateway are of a moment later."""
    return StatisticsAnswer.of(await use_cases.queries.statistics())

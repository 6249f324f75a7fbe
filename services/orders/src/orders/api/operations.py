"""The route for those who run the shop: statistics. Health comes from servicekit."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from orders.api.dependencies import UseCasesOf
from orders.api.schemas import StatisticsAnswer
from servicekit.auth import STATISTICS_READ
from servicekit.http import problem as common
from servicekit.http.middleware import requires
from servicekit.http.problem import documented

router = APIRouter(tags=["operations"])


@router.get(
    "/statistics",
    summary="Orders by status and units by place",
    dependencies=[Depends(requires(STATISTICS_READ))],
    responses=documented(common.STORAGE_UNAVAILABLE),
)
async def get_statistics(use_cases: UseCasesOf) -> StatisticsAnswer:
    """All numbers are of one moment."""
    return StatisticsAnswer.of(await use_cases.queries.statistics())

"""The route for those who run the service: statistics. Health comes from servicekit."""

from __future__ import annotations

from fastapi import APIRouter

from orders.api.dependencies import UseCasesOf
from orders.api.schemas import StatisticsAnswer
from servicekit.api import problem as common
from servicekit.api.problem import documented

router = APIRouter(tags=["operations"])


@router.get(
    "/statistics", summary="Orders by status and units by place", responses=documented(common.STORAGE_UNAVAILABLE)
)
async def statistics(use_cases: UseCasesOf) -> StatisticsAnswer:
    return StatisticsAnswer.of(await use_cases.queries.statistics())

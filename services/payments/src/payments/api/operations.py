"""The route for those who run the service: statistics. Health comes from servicekit."""

from __future__ import annotations

from fastapi import APIRouter

from payments.api import problem
from payments.api.dependencies import UseCasesOf
from payments.api.schemas import StatisticsAnswer
from servicekit.api import problem as common
from servicekit.api.problem import documented

router = APIRouter(tags=["operations"])


@router.get(
    "/statistics",
    summary="Payments by status, money by the database, and money by the gateway's own book",
    responses=documented(common.STORAGE_UNAVAILABLE, problem.GATEWAY_UNAVAILABLE),
)
async def statistics(use_cases: UseCasesOf) -> StatisticsAnswer:
    return StatisticsAnswer.of(await use_cases.queries.statistics())

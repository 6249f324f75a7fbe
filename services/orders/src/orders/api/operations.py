"""The routes for those who run the service: health and statistics."""

from __future__ import annotations

from fastapi import APIRouter, Response

from orders.api import problem
from orders.api.dependencies import UseCasesOf
from orders.api.problem import documented
from orders.api.schemas import Liveness, Readiness, StatisticsAnswer

router = APIRouter(tags=["operations"])


@router.get("/health/live", summary="Whether the process serves requests")
async def live() -> Liveness:
    return Liveness()


@router.get(
    "/health/ready",
    summary="Whether database, producer, consumers and outbox work",
    responses={
        503: {"model": Readiness, "description": "At least one part does not work; orders are kept all the same"}
    },
)
async def ready(use_cases: UseCasesOf, response: Response) -> Readiness:
    report = await use_cases.health.report()
    if not report.is_ready:
        response.status_code = 503
    return Readiness(status="ready" if report.is_ready else "not ready", checks=report.checks)


@router.get(
    "/statistics", summary="Orders by status and units by place", responses=documented(problem.STORAGE_UNAVAILABLE)
)
async def statistics(use_cases: UseCasesOf) -> StatisticsAnswer:
    return StatisticsAnswer.of(await use_cases.queries.statistics())

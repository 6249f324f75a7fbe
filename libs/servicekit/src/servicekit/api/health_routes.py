"""The routes that say how the service is."""

from __future__ import annotations

from fastapi import APIRouter, Response

from servicekit.api.schemas import Liveness, Readiness
from servicekit.health import Health


def health_routes(health: Health) -> APIRouter:
    """GET /health/live and GET /health/ready."""
    router = APIRouter(prefix="/health", tags=["operations"])

    @router.get("/live", summary="Whether the process serves requests")
    async def live() -> Liveness:
        return Liveness()

    @router.get(
        "/ready",
        summary="Whether everything that the service needs works",
        responses={503: {"model": Readiness, "description": "At least one part does not work"}},
    )
    async def ready(response: Response) -> Readiness:
        report = await health.report()
        if not report.is_ready:
            response.status_code = 503
        return Readiness(status="ready" if report.is_ready else "not ready", checks=report.checks)

    return router

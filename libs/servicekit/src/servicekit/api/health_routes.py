"""The routes that say how the service is. They find its health in `app.state.health`.

They belong to no one application: FastAPI remembers the functions of routes as long as the process lives, and an
application that is over, with its databases, would stay with them.
"""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request, Response

from servicekit.api.schemas import Liveness, Readiness
from servicekit.health import Health

router = APIRouter(prefix="/health", tags=["operations"])


@router.get("/live", summary="Whether the process serves requests")
async def live() -> Liveness:
    """Without looking at anything else."""
    return Liveness()


@router.get(
    "/ready",
    summary="Whether everything that the service needs works",
    responses={503: {"model": Readiness, "description": "At least one part does not work"}},
)
async def ready(request: Request, response: Response) -> Readiness:
    """Each part by its name."""
    report = await cast(Health, request.app.state.health).report()
    if not report.is_ready:
        response.status_code = 503
    return Readiness(status="ready" if report.is_ready else "not ready", checks=report.checks)

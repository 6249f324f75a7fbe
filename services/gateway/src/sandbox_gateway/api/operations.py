"""The routes for those who run the gateway: its book, and what is to go wrong. Health comes from servicekit."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from sandbox_gateway.api.dependencies import UseCasesOf, check_api_key
from sandbox_gateway.api.schemas import BookAnswer, FailuresDocument
from servicekit.api import problem as common
from servicekit.api.problem import documented

router = APIRouter(prefix="/v1", tags=["operations"], dependencies=[Depends(check_api_key)])


@router.get(
    "/book",
    summary="Everything that was taken and given back",
    responses=documented(common.STORAGE_UNAVAILABLE),
)
async def book(use_cases: UseCasesOf) -> BookAnswer:
    return BookAnswer.of(await use_cases.gateway.book())


@router.get("/failures", summary="What goes wrong")
async def get_failures(use_cases: UseCasesOf) -> FailuresDocument:
    return FailuresDocument.of(use_cases.behaviour.failures)


@router.put(
    "/failures",
    summary="Set what goes wrong with what is decided from now on",
    responses=documented(common.MALFORMED_REQUEST, common.BODY_TOO_LARGE, common.INVALID_REQUEST),
)
async def set_failures(failures: FailuresDocument, use_cases: UseCasesOf) -> FailuresDocument:
    """Until the next start, which goes back to the configuration."""
    use_cases.behaviour.failures = failures.to_failures()
    return failures

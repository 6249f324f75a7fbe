"""Figure G9, the HTTP part, in small: about 1,000 requests made of the OpenAPI documents of orders and payments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from http_served import Served
from http_sweep import Sweeping, run_http
from pydantic import BaseModel

from osenv import SimClock
from servicekit.auth import Tokens

WANTED = 1_250  # an operation that takes nothing has few different requests
REQUESTS_MIN = 1_000


class Tower(BaseModel):
    """What the document promises."""

    height: int


@pytest.mark.mechanism("U3")
def test_requests_are_answered_as_the_documents_say(record_property: Callable[[str, object], None]) -> None:
    outcome = run_http(1, WANTED)
    assert outcome.violations == (), "again: .venv/bin/python tests/robustness/runner.py --replay http 1"
    assert outcome.executed >= REQUESTS_MIN
    record_property("figure", f"G9: {outcome.executed:,} HTTP requests, each answered as its document says")
    # Requests that are all rejected at the door would test the door alone.
    for service in ("orders", "payments"):
        for status in (200, 201, 401, 403, 404, 409, 422):
            assert outcome.counts[f"{service} {status}"] > 0, (service, status, outcome.counts)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (JSONResponse({"height": 1}), None),
        (JSONResponse({"height": "tall"}), "violates schema"),
        (JSONResponse({"height": 1}, 418), "Undocumented status code"),
        (Response(b"1", media_type="text/plain"), "Undocumented Content-Type"),
        (JSONResponse({"height": 1}, 500), "Server error"),
    ],
)
def test_an_answer_that_is_not_described_is_a_violation(answer: Response, sentence: str | None) -> None:
    api = FastAPI()

    @api.get("/tower", responses={500: {}})
    async def tower(name: str = "") -> Tower:
        return answer  # type: ignore[return-value]  # an answer that no document binds

    http = httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://towers")
    tokens = Tokens([("test", "a secret that is known to tests only")], SimClock())
    with asyncio.Runner() as runner:
        sweeping = Sweeping(Served("towers", http, api.openapi(), tokens, {}), runner)
        sweeping.sweep(10, seed=1)
        runner.run(http.aclose())
    found = "".join(sweeping.violations.values())
    assert sweeping.executed > 0
    assert (sentence or "") in found
    assert bool(found) == (sentence is not None)

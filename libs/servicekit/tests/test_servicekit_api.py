"""What build_api gives a service, whatever its routes are."""

from __future__ import annotations

import base64
import gc
import hashlib
import re
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import APIRouter

import telemetry
from osenv import SimClock
from servicekit.auth import Tokens
from servicekit.errors import PublishError, RejectedError, RequestInFlightError, ServiceError
from servicekit.http.application import ServiceApi, build_api
from servicekit.http.limits import AdmissionLimit
from servicekit.http.parameters import IdempotencyKey, RequestModel
from servicekit.http.problem import MEDIA_TYPE, ProblemType
from servicekit.monitoring import OK, Health


class TooTallError(RejectedError):
    """A service's own error."""

    def __init__(self, height: int) -> None:
        super().__init__(f"{height} is too tall")
        self.height = height


class UnlistedError(RejectedError):
    """An error that its service forgot to list."""


class Tower(RequestModel):
    height: int


ERRORS = {
    1: TooTallError(1),
    2: RequestInFlightError("k"),
    3: PublishError("the queue is down"),
    4: UnlistedError("forgotten"),
    5: ZeroDivisionError("secret"),
}
TOO_TALL = ProblemType("too-tall", 409, "That is too tall", ("height",))


@asynccontextmanager
async def serving() -> AsyncIterator[httpx.AsyncClient]:
    telemetry.configure("towers", "CRITICAL")
    router = APIRouter(tags=["operations"])

    @router.post("/towers")
    async def build(tower: Tower, key: IdempotencyKey) -> str:
        error = ERRORS.get(tower.height)
        if error is not None:
            raise error
        return key

    async def database() -> str:
        return OK

    problems: dict[type[ServiceError], ProblemType] = {TooTallError: TOO_TALL}
    clock = SimClock()
    api = build_api(
        title="Towers",
        summary="Towers",
        routers=[router],
        health=Health({"database": database}, clock),
        problem_of_error=problems,
        tokens=Tokens([("test", "a secret that is known to tests only")], clock),
        rate_limit=None,
        clock=clock,
    )
    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://towers") as http:
        yield http


@pytest.mark.parametrize(
    ("height", "status", "kind", "members"),
    [
        (1, 409, "too-tall", {"height": 1}),
        (2, 409, "request-in-flight", {}),
        (3, 503, "queue-unavailable", {}),
        (4, 500, "internal-error", {}),
        (5, 500, "internal-error", {}),
        ("x", 422, "invalid-request", {}),
    ],
)
async def test_errors_are_problems(height: object, status: int, kind: str, members: dict[str, object]) -> None:
    async with serving() as http:
        answer = await http.post("/towers", json={"height": height}, headers={"Idempotency-Key": "k"})
    body = answer.json()
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, MEDIA_TYPE)
    assert (body["type"], body["status"]) == (f"urn:hourglass:problem:{kind}", status)
    assert len(body["trace_id"]) == 32
    assert body | members == body
    assert "secret" not in answer.text
    assert ("Retry-After" in answer.headers) == (kind in {"request-in-flight", "queue-unavailable"})


async def test_a_key_reaches_the_route_and_a_missing_one_is_a_problem() -> None:
    async with serving() as http:
        answer = await http.post("/towers", json={"height": 9}, headers={"Idempotency-Key": "k-1"})
        assert (answer.status_code, answer.json()) == (200, "k-1")
        missing = await http.post("/towers", json={"height": 9})
        assert (missing.status_code, missing.json()["type"]) == (400, "urn:hourglass:problem:missing-idempotency-key")


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        ("k", "k"),
        ('"k"', "k"),
        ('"8e03978e-40d5-43e8-bc93-6894a57f9324"', "8e03978e-40d5-43e8-bc93-6894a57f9324"),
        (r'"a \"b\" \\c"', r'a "b" \c'),
        ("x" * 255, "x" * 255),
        ('"' + r"\\" * 255 + '"', "\\" * 255),
    ],
)
async def test_a_key_is_the_same_with_quotes_and_without(sent: str, key: str) -> None:
    async with serving() as http:
        answer = await http.post("/towers", json={"height": 9}, headers={"Idempotency-Key": sent})
    assert (answer.status_code, answer.json()) == (200, key)


@pytest.mark.parametrize(
    "sent", ["", '""', '"k', 'k"', "a b", '"a";p=1', r'"a\b"', "x" * 256, '"' + "x" * 256 + '"', "é"]
)
async def test_a_key_that_is_not_one_string_is_rejected(sent: str) -> None:
    async with serving() as http:
        answer = await http.post("/towers", json={"height": 9}, headers=[(b"Idempotency-Key", sent.encode())])
        assert answer.json()["type"] == "urn:hourglass:problem:invalid-idempotency-key"
        headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
        twice = await http.post("/towers", json={"height": 9}, headers=headers)
        assert (twice.status_code, twice.json()["type"]) == (400, "urn:hourglass:problem:invalid-idempotency-key")


@pytest.mark.parametrize(
    ("method", "path", "kind", "status"),
    [
        ("GET", "/nowhere", "no-such-route", 404),
        ("GET", "/towers/", "no-such-route", 404),
        ("GET", "/redoc", "no-such-route", 404),
        ("DELETE", "/towers", "method-not-allowed", 405),
        ("POST", "/health/live", "method-not-allowed", 405),
    ],
)
async def test_what_no_route_takes_is_a_problem(method: str, path: str, kind: str, status: int) -> None:
    async with serving() as http:
        answer = await http.request(method, path)
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:hourglass:problem:{kind}")
    assert answer.headers["Content-Type"] == MEDIA_TYPE
    assert ("Allow" in answer.headers) == (status == 405)
    # Probes are not traced.
    assert (answer.json()["trace_id"] is None) == path.startswith("/health/")


async def test_health_and_the_schema_of_problems_are_there() -> None:
    async with serving() as http:
        assert (await http.get("/health/live")).json() == {"status": "live"}
        assert (await http.get("/health/ready")).json() == {"status": "ready", "checks": {"database": "ok"}}
        document = (await http.get("/openapi.json")).json()
    assert {"Problem", "FieldError"} <= set(document["components"]["schemas"])


async def test_docs_describes_every_operation_and_loads_nothing() -> None:
    async with serving() as http:
        answer = await http.get("/docs")
        document = (await http.get("/openapi.json")).json()
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    operations = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    assert [one for one in operations if f"<h3>{one}</h3>" not in answer.text] == []
    assert 'href="/openapi.json"' in answer.text
    assert re.findall(r"https?:|//|<script|<link|<img|src=|@import|url\(", answer.text) == []
    style = re.search("<style>(.*)</style>", answer.text)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert f"style-src 'sha256-{digest}'" in policy


async def test_an_application_that_is_over_leaves_nothing_in_the_process() -> None:
    """What FastAPI and OpenTelemetry remember for as long as the process lives does not lead to it, or its database."""

    class Database:
        async def health(self) -> str:
            return OK

    async def life() -> tuple[weakref.ref[ServiceApi], weakref.ref[Database]]:
        clock, database = SimClock(), Database()
        api = build_api(
            title="Towers", summary="Towers", routers=[], health=Health({"database": database.health}, clock),
            problem_of_error={}, tokens=None, rate_limit=None, clock=clock, admission_limit=AdmissionLimit(1, 500),
        )  # fmt: skip
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://towers") as http:
            answer = await http.get("/health/ready")
            assert (answer.status_code, answer.json()["checks"]) == (200, {"database": OK})
        return weakref.ref(api), weakref.ref(database)

    api, database = await life()
    gc.collect()
    assert (api(), database()) == (None, None)

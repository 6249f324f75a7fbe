"""Callers over HTTP: which routes need a token, the problems of a rejected one, rate limits, and entity tags."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends

import telemetry
from osenv import SimClock
from servicekit.auth import BUYER, Caller, Tokens
from servicekit.http.application import ServiceApi, build_api
from servicekit.http.limits import RateLimit
from servicekit.http.middleware import CallerOf, requires
from servicekit.http.parameters import Condition, entity_tag
from servicekit.http.problem import MEDIA_TYPE, ProblemError
from servicekit.monitoring import Health

PROBLEM = "urn:hourglass:problem:"


@dataclass(frozen=True, slots=True)
class Serving:
    http: httpx.AsyncClient
    tokens: Tokens
    clock: SimClock
    api: ServiceApi

    def bearer(self, subject: str, *scopes: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens.issue(subject, scopes)}"}


@asynccontextmanager
async def serving(rate_limit: RateLimit | None = None, client: str = "10.0.0.1") -> AsyncIterator[Serving]:
    telemetry.configure("doors", "CRITICAL")
    router = APIRouter()

    @router.get("/open")
    async def open_door() -> str:
        return "in"

    @router.get("/any")
    async def any_door(caller: CallerOf) -> str:
        return caller.subject

    @router.get("/one")
    async def one_door(caller: Annotated[Caller, Depends(requires("orders:read"))]) -> str:
        return caller.subject

    @router.post("/either")
    async def either_door(caller: Annotated[Caller, Depends(requires("orders:write", "orders:ship"))]) -> str:
        """Two ways in."""
        return caller.subject

    @router.post("/webhooks/one")
    async def webhook() -> str:
        return "heard"

    clock = SimClock()
    tokens = Tokens([("test", "a secret that is known to tests only")], clock)
    api = build_api(
        title="Doors",
        summary="Doors",
        routers=[router],
        health=Health({}, clock),
        problem_of_error={},
        tokens=tokens,
        rate_limit=rate_limit,
        clock=clock,
    )
    transport = httpx.ASGITransport(api, raise_app_exceptions=False, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://doors") as http:
        yield Serving(http, tokens, clock, api)


@pytest.mark.parametrize("path", ["/any", "/one"])
async def test_without_a_token_the_answer_says_how_to_bring_one(path: str) -> None:
    async with serving() as doors:
        answer = await doors.http.get(path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (401, MEDIA_TYPE)
    assert answer.json()["type"] == PROBLEM + "unauthenticated"
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="hourglass"'
    assert len(answer.json()["trace_id"]) == 32


@pytest.mark.parametrize("value", ["Bearer", "Bearer x", "Basic dTpw", "bearer  ", "x", "Bearer a b", "Bearer \xe9"])
async def test_a_token_that_is_none_is_rejected_with_the_reason(value: str) -> None:
    async with serving() as doors:
        headers = [(b"Authorization", value.encode("latin-1"))]
        answer = await doors.http.get("/any", headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (401, PROBLEM + "unauthenticated")
        assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]
        # A route without tokens rejects no caller.
        assert (await doors.http.get("/open", headers=headers)).status_code == 200


async def test_two_authorization_headers_are_rejected_whatever_they_say() -> None:
    async with serving() as doors:
        both = [*doors.bearer("a", "orders:read").items(), *doors.bearer("b", "orders:read").items()]
        assert (await doors.http.get("/any", headers=both)).status_code == 401


async def test_an_expired_token_is_rejected_as_expired() -> None:
    async with serving() as doors:
        headers = {"Authorization": f"bearer {doors.tokens.issue('buyer-1', BUYER, lifetime_s=60)}"}
        assert (await doors.http.get("/one", headers=headers)).json() == "buyer-1"
        await doors.clock.advance(120)
        answer = await doors.http.get("/one", headers=headers)
        assert answer.status_code == 401
        assert "expired" in answer.json()["detail"]


async def test_a_scope_that_is_missing_is_named_and_one_of_several_is_enough() -> None:
    async with serving() as doors:
        assert (await doors.http.get("/any", headers=doors.bearer("b"))).json() == "b"
        answer = await doors.http.get("/one", headers=doors.bearer("b", "orders:write"))
        assert (answer.status_code, answer.json()["type"]) == (403, PROBLEM + "forbidden")
        assert answer.json()["scopes"] == ["orders:read"]
        assert 'error="insufficient_scope", scope="orders:read"' in answer.headers["WWW-Authenticate"]
        for scope, status in (("orders:write", 200), ("orders:ship", 200), ("orders:read", 403)):
            answer = await doors.http.post("/either", headers=doors.bearer("b", scope))
            assert answer.status_code == status


async def test_the_document_says_who_may_ask_what_and_what_else_is_answered() -> None:
    async with serving(RateLimit(9, 60)) as doors:
        document = doors.api.openapi()
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    operations = {path: next(iter(item.values())) for path, item in document["paths"].items()}
    assert operations["/open"]["security"] == operations["/health/live"]["security"] == []
    assert operations["/any"]["security"] == [{"bearer": []}]
    assert operations["/either"]["security"] == [{"bearer": ["orders:write"]}, {"bearer": ["orders:ship"]}]
    assert "Two ways in." in operations["/either"]["description"]
    assert "`orders:ship` (ship orders" in operations["/either"]["description"]
    statuses = {path: set(operation["responses"]) for path, operation in operations.items()}
    assert statuses["/open"] == {"200", "429", "503"}
    assert statuses["/any"] == {"200", "401", "429", "503"}
    assert statuses["/one"] == {"200", "401", "403", "429", "503"}
    assert statuses["/webhooks/one"] == statuses["/health/live"] == {"200"}
    assert set(operations["/open"]["responses"]["200"]["headers"]) == {"RateLimit", "RateLimit-Policy"}


async def test_every_answer_says_how_many_requests_are_left_and_too_many_are_rejected_until_then() -> None:
    async with serving(RateLimit(3, 60)) as doors:
        headers = doors.bearer("b")
        for path, status, left in (("/any", 200, 2), ("/nowhere", 404, 1), ("/one", 403, 0)):
            answer = await doors.http.get(path, headers=headers)
            assert answer.status_code == status
            assert answer.headers["RateLimit-Policy"] == '"default";q=3;w=60'
            assert answer.headers["RateLimit"] == f'"default";r={left};t=60'
        await doors.clock.advance(10)
        rejected = await doors.http.get("/any", headers=headers)
        assert (rejected.status_code, rejected.json()["type"]) == (429, PROBLEM + "rate-limited")
        assert (rejected.headers["Retry-After"], rejected.headers["RateLimit"]) == ("50", '"default";r=0;t=50')
        assert len(rejected.json()["trace_id"]) == 32
        assert (await doors.http.get("/any", headers=doors.bearer("c"))).status_code == 200
        await doors.clock.advance(50)
        assert (await doors.http.get("/any", headers=headers)).status_code == 200


async def test_a_caller_without_a_valid_token_is_counted_by_address() -> None:
    async with serving(RateLimit(2, 60)) as doors:
        for n in range(2):
            wrong = {"Authorization": f"Bearer guess-{n}"}
            assert (await doors.http.get("/any", headers=wrong)).status_code == 401
        assert (await doors.http.get("/any", headers={"Authorization": "Bearer guess-2"})).status_code == 429
        assert (await doors.http.get("/open")).status_code == 429
        assert (await doors.http.get("/any", headers=doors.bearer("b"))).status_code == 200


async def test_health_and_webhooks_are_not_limited() -> None:
    async with serving(RateLimit(1, 60)) as doors:
        for _ in range(3):
            assert (await doors.http.get("/health/live")).status_code == 200
            heard = await doors.http.post("/webhooks/one")
            assert (heard.status_code, "RateLimit" in heard.headers) == (200, False)


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::2", True),  # what one subscriber has
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
    ],
)
async def test_addresses_are_counted_as_people_get_them(one: str, other: str, are_one: bool) -> None:
    async with serving(RateLimit(1, 60), client=one) as doors:
        assert (await doors.http.get("/open")).status_code == 200
        transport = httpx.ASGITransport(doors.api, client=(other, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://doors") as http:
            assert (await http.get("/open")).status_code == (429 if are_one else 200)


@pytest.mark.parametrize(
    ("value", "versions"),
    [
        (None, None),
        ("*", None),
        ('"o-1.3"', {3}),
        ('"o-1.3", "o-1.4"', {3, 4}),
        (' "o-1.3" ,, "x.9"', {3}),
        ('W/"o-1.3"', set()),
        ('"o-2.3"', set()),
        ('"o-1.x"', set()),
        ('"o-1.²"', set()),
        ('"o-1.99999999999999999999"', set()),
        ('""', set()),
    ],
)
def test_if_match_names_versions_of_the_object(value: str | None, versions: set[int] | None) -> None:
    found = Condition("If-Match", value).versions("o-1")
    assert found == (None if versions is None else frozenset(versions))


@pytest.mark.parametrize("value", ["", "o-1.3", '"o-1.3', '"a" "b"', '*, "a"', 'w/"a"', "'a'", '"a",b'])
def test_a_condition_that_is_no_list_of_tags_is_rejected(value: str) -> None:
    with pytest.raises(ProblemError, match="double quotes"):
        Condition("If-Match", value)


@pytest.mark.parametrize(
    ("value", "is_known"),
    [(None, False), ("*", True), ('"o.1"', True), ('W/"o.1"', True), ('"o.2", "o.1"', True), ('"o.2"', False)],
)
def test_if_none_match_compares_weakly(value: str | None, is_known: bool) -> None:
    assert Condition("If-None-Match", value).is_known(entity_tag("o", 1)) is is_known

"""Charges and refunds over the wire: what is taken, what is rejected, and that an id names one thing for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from sandbox_gateway.domain import BANK_DECLINED, OVER_THE_LIMIT
from sandbox_gateway.gateway import Behaviour
from sandbox_gateway.testing import RunningGateway, running_gateway
from servicekit.testing.databases import NewDatabaseUrl

PROBLEM = "urn:hourglass:problem:"


@pytest_asyncio.fixture
async def gateway(new_database_url: NewDatabaseUrl) -> AsyncIterator[RunningGateway]:
    async with running_gateway(
        new_database_url("gateway"), behaviour=Behaviour(declines_above_minor=20_000)
    ) as running:
        yield running


@pytest_asyncio.fixture
async def quick_gateway(new_database_url: NewDatabaseUrl) -> AsyncIterator[RunningGateway]:
    """One that decides at once."""
    async with running_gateway(new_database_url("gateway"), behaviour=Behaviour(delay_ms=0)) as running:
        yield running


async def book_of(gateway: RunningGateway) -> dict[str, int]:
    book: dict[str, int] = (await gateway.http.get("/v1/book")).json()
    return book


async def test_a_charge_is_pending_until_its_time_and_captured_then(gateway: RunningGateway) -> None:
    answer = await gateway.charge("p")
    assert (answer.status_code, answer.json()["status"], answer.json()["decided_at_ms"]) == (202, "pending", None)
    assert await book_of(gateway) == {"captured_minor": 0, "refunded_minor": 0, "captures": 0, "refunds": 0}
    await gateway.pass_time(0.05)
    decided_at_ms = gateway.clock.wall_ms()
    await gateway.pass_time(10)
    found = await gateway.http.get("/v1/charges/p")
    assert found.json() == answer.json() | {"status": "captured", "decided_at_ms": decided_at_ms}
    again = await gateway.charge("p")
    assert (again.status_code, again.json()) == (202, found.json())
    assert await book_of(gateway) == {"captured_minor": 15800, "refunded_minor": 0, "captures": 1, "refunds": 0}


async def test_a_charge_over_the_limit_is_declined_for_ever(gateway: RunningGateway) -> None:
    await gateway.charge("p", amount_minor=20_001)
    await gateway.pass_time(1)
    declined = (await gateway.charge("p", amount_minor=20_001)).json()
    assert (declined["status"], declined["decline_reason"]) == ("declined", OVER_THE_LIMIT)
    assert (await gateway.refund("r", "p")).json()["type"] == PROBLEM + "not-refundable"
    assert (await book_of(gateway))["captures"] == 0


async def test_a_gateway_without_a_delay_answers_with_the_decision(quick_gateway: RunningGateway) -> None:
    assert (await quick_gateway.charge("p")).json()["status"] == "captured"
    assert (await quick_gateway.refund("r", "p")).json()["status"] == "refunded"
    assert await book_of(quick_gateway) == {
        "captured_minor": 15800,
        "refunded_minor": 15800,
        "captures": 1,
        "refunds": 1,
    }


@pytest.mark.parametrize(
    "changes", [{"amount_minor": 1}, {"currency": "EUR"}, {"order_id": "another"}, {"method": "wallet"}]
)
async def test_an_id_with_other_terms_is_rejected(quick_gateway: RunningGateway, changes: dict[str, Any]) -> None:
    await quick_gateway.charge("p")
    rejected = await quick_gateway.charge("p", **changes)
    assert (rejected.status_code, rejected.json()["type"]) == (409, PROBLEM + "other-terms")
    assert (await book_of(quick_gateway))["captured_minor"] == 15800


async def test_refunds_are_never_more_than_their_charge(quick_gateway: RunningGateway) -> None:
    gateway = quick_gateway
    await gateway.charge("p", amount_minor=100)
    assert (await gateway.refund("r1", "p", amount_minor=60)).status_code == 202
    for changes in ({"amount_minor": 41}, {"amount_minor": 2**63 - 1}, {"amount_minor": 40, "currency": "EUR"}):
        rejected = await gateway.refund("r2", "p", **changes)
        assert (rejected.status_code, rejected.json()["type"]) == (422, PROBLEM + "not-refundable"), changes
        assert (await gateway.http.get("/v1/refunds/r2")).status_code == 404
    assert (await gateway.refund("r2", "p", amount_minor=40)).json()["status"] == "refunded"
    assert (await gateway.refund("r3", "p", amount_minor=1)).status_code == 422
    assert (await gateway.refund("r3", "ghost", amount_minor=1)).status_code == 422
    for changes in ({"amount_minor": 39}, {"amount_minor": 40, "currency": "EUR"}):
        assert (await gateway.refund("r2", "p", **changes)).json()["type"] == PROBLEM + "other-terms"
    assert await book_of(gateway) == {"captured_minor": 100, "refunded_minor": 100, "captures": 1, "refunds": 2}


async def test_pending_refunds_count_against_their_charge(gateway: RunningGateway) -> None:
    await gateway.charge("p", amount_minor=100)
    assert (await gateway.refund("r1", "p", amount_minor=1)).status_code == 422, "nothing was taken yet"
    await gateway.pass_time(1)
    assert (await gateway.refund("r1", "p", amount_minor=60)).json()["status"] == "pending"
    assert (await gateway.refund("r2", "p", amount_minor=41)).status_code == 422
    assert (await book_of(gateway))["refunds"] == 0
    await gateway.pass_time(1)
    assert (await gateway.http.get("/v1/refunds/r1")).json()["status"] == "refunded"
    assert (await book_of(gateway))["refunded_minor"] == 60


async def test_many_requests_at_once_make_one_charge_and_no_refund_too_many(quick_gateway: RunningGateway) -> None:
    gateway = quick_gateway
    charges = await asyncio.gather(*(gateway.charge("p", amount_minor=100) for _ in range(8)))
    assert {answer.status_code for answer in charges} <= {202, 503}
    await gateway.charge("p", amount_minor=100)
    same = await asyncio.gather(*(gateway.refund("r", "p", amount_minor=40) for _ in range(8)))
    assert {answer.status_code for answer in same} <= {202, 503}
    await asyncio.gather(*(gateway.refund(f"r{number}", "p", amount_minor=30) for number in range(8)))
    assert await book_of(gateway) == {"captured_minor": 100, "refunded_minor": 100, "captures": 1, "refunds": 3}


async def test_what_is_unknown_is_said_to_be(gateway: RunningGateway) -> None:
    for path, kind in (("/v1/charges/ghost", "unknown-charge"), ("/v1/refunds/ghost", "unknown-refund")):
        answer = await gateway.http.get(path)
        assert (answer.status_code, answer.json()["type"]) == (404, PROBLEM + kind)


@pytest.mark.parametrize(
    "changes",
    [
        {"amount_minor": 0},
        {"amount_minor": 1.0},
        {"amount_minor": "1"},
        {"amount_minor": 2**63},
        {"currency": "cny"},
        {"order_id": "no spaces"},
        {"method": ""},
        {"colour": "blue"},
    ],
)
async def test_a_charge_that_makes_no_sense_is_rejected(gateway: RunningGateway, changes: dict[str, Any]) -> None:
    rejected = await gateway.charge("p", **changes)
    assert (rejected.status_code, rejected.json()["type"]) == (422, PROBLEM + "invalid-request")


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer wrong", "Basic abc", "Bearer \xe9"])
async def test_nothing_is_done_or_told_without_the_key(gateway: RunningGateway, key: str) -> None:
    headers = httpx.Headers({b"Authorization": key.encode("latin-1")})
    for method, path in (
        ("POST", "/v1/charges"),
        ("GET", "/v1/charges/p"),
        ("POST", "/v1/refunds"),
        ("GET", "/v1/refunds/r"),
        ("GET", "/v1/book"),
        ("GET", "/v1/failures"),
        ("PUT", "/v1/failures"),
    ):
        answer = await gateway.http.request(method, path, headers=headers, json=None if method == "GET" else {})
        assert (answer.status_code, answer.json()["type"]) == (401, PROBLEM + "unauthenticated"), (method, path)
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert (await gateway.http.get("/health/live", headers=headers)).status_code == 200
    ready = await gateway.http.get("/health/ready", headers=headers)
    assert (ready.status_code, ready.json()["checks"]) == (200, {"database": "ok"})


async def test_failures_are_set_while_it_runs_and_hold_for_what_is_decided_then(quick_gateway: RunningGateway) -> None:
    gateway = quick_gateway
    none = {"declined": 0, "late": 0, "late_ms": 0, "duplicated": 0, "reordered": 0, "never": 0}
    assert (await gateway.http.get("/v1/failures")).json() == none
    assert (await gateway.charge("p1")).json()["status"] == "captured"
    answer = await gateway.http.put("/v1/failures", json={"declined": 1, "late": 0.5, "late_ms": 3000})
    assert answer.json() == none | {"declined": 1, "late": 0.5, "late_ms": 3000}
    assert (await gateway.http.get("/v1/failures")).json() == answer.json()
    declined = (await gateway.charge("p2")).json()
    assert (declined["status"], declined["decline_reason"]) == ("declined", BANK_DECLINED)
    assert (await gateway.charge("p1")).json()["status"] == "captured", "what was decided stays"
    for wrong in ({"declined": 1.5}, {"lost": 1}, {"late_ms": -1}, {"declined": "NaN"}):
        assert (await gateway.http.put("/v1/failures", json=wrong)).status_code == 422, wrong
    assert (await gateway.http.get("/v1/failures")).json() == answer.json()


async def test_the_document_names_every_route_and_its_key(gateway: RunningGateway) -> None:
    document = (await gateway.http.get("/openapi.json")).json()
    assert {path for path in document["paths"] if path.startswith("/v1")} == {
        "/v1/charges",
        "/v1/charges/{charge_id}",
        "/v1/refunds",
        "/v1/refunds/{refund_id}",
        "/v1/book",
        "/v1/failures",
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["security"] == ([{"api_key": []}] if path.startswith("/v1") else [])

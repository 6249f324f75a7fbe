"""Spans of statements, of requests to others, and of requests that are answered; and ids where nothing is recorded."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from sqlalchemy import text

import telemetry
from osenv import SimClock
from osenv.sim_clock import settle
from servicekit.background import StoredGauge, stored_gauges
from servicekit.errors import StorageUnavailableError
from servicekit.http.application import build_api
from servicekit.monitoring import OK, Health, trace_requests
from servicekit.sql.database import Database
from servicekit.testing.databases import NewDatabaseUrl
from telemetry.testing.recorder import Recorder

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACER = telemetry.tracer("test")


async def select(database: Database) -> None:
    async with database.snapshot() as connection:
        await connection.execute(text("SELECT :secret"), {"secret": "not for every eye"})


async def test_a_statement_inside_a_span_has_a_span_with_its_text_and_without_its_values(
    new_database_url: NewDatabaseUrl,
) -> None:
    with Recorder() as recorder:
        database = Database(new_database_url("traced"))
        try:
            with TRACER.start_as_current_span("work") as work:
                await select(database)
        finally:
            await database.dispose()
        spans = {span.name: span for span in recorder.spans()}
    assert spans["SELECT"].parent_span_id == f"{work.get_span_context().span_id:016x}"
    assert "SELECT" in str(spans["SELECT"].attributes["db.query.text"])
    assert spans["SELECT"].attributes["db.system.name"] in ("sqlite", "postgresql")
    assert not [span for span in spans.values() if "every eye" in str(span.attributes)]
    assert "connect" not in spans


async def test_what_happens_outside_of_spans_makes_none(new_database_url: NewDatabaseUrl) -> None:
    with Recorder() as recorder:
        database = Database(new_database_url("untraced"))
        try:
            await select(database)
        finally:
            await database.dispose()
        assert recorder.spans() == []


async def test_a_database_that_was_opened_while_nothing_is_traced_stays_as_it_is(
    new_database_url: NewDatabaseUrl,
) -> None:
    database = Database(new_database_url("untraced"))
    try:
        with Recorder() as recorder, TRACER.start_as_current_span("work"):
            await select(database)
            assert recorder.spans() == []
    finally:
        await database.dispose()


async def test_a_request_to_another_service_has_a_span_and_takes_its_context_along() -> None:
    taken: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        taken.append(request)
        return httpx.Response(200)

    with Recorder() as recorder:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            trace_requests(client)
            await client.get("http://other/outside")
            with TRACER.start_as_current_span("work"):
                headers: dict[str, str] = {}
                telemetry.inject(headers)  # what the client does while nothing is traced; the span's own context wins
                await client.get("http://other/inside", headers=headers)
        request, work = recorder.spans()
    assert (request.name, request.kind, request.parent_span_id) == ("GET", "CLIENT", work.span_id)
    assert request.attributes["http.request.method"] == "GET"  # the conventions' present names
    outside, inside = taken
    assert "traceparent" not in outside.headers
    (carried,) = inside.headers.get_list("traceparent")
    assert carried.startswith(f"00-{request.trace_id}-{request.span_id}-")


def client_of(parts: dict[str, str | None]) -> httpx.AsyncClient:
    """An API with one check of health, which notes the trace that it runs in."""

    async def check() -> str:
        parts["health"] = telemetry.current_trace_id()
        return OK

    clock = SimClock()
    api = build_api(
        title="T",
        summary="T",
        routers=[],
        health=Health({"part": check}, clock),
        problem_of_error={},
        tokens=None,
        rate_limit=None,
        clock=clock,
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://test")


@pytest.mark.parametrize("is_tracing", [True, False])
async def test_a_request_runs_in_its_callers_trace_or_in_one_of_its_own(*, is_tracing: bool) -> None:
    with Recorder(tracing=is_tracing, measuring=False) as recorder:
        async with client_of({}) as http:
            own = (await http.get("/nowhere")).json()["trace_id"]
            callers = (await http.get("/nowhere", headers={"traceparent": CALLER})).json()["trace_id"]
            malformed = (await http.get("/nowhere", headers={"traceparent": "00-?"})).json()["trace_id"]
        spans = recorder.spans()
    assert callers == CALLER.split("-")[1]
    assert len({own, callers, malformed}) == 3
    assert {len(own), len(malformed)} == {32}
    assert [span.kind for span in spans] == (["SERVER"] * 3 if is_tracing else [])


@pytest.mark.parametrize("is_tracing", [True, False])
async def test_probes_make_no_spans(*, is_tracing: bool) -> None:
    parts: dict[str, str | None] = {}
    with Recorder(tracing=is_tracing, measuring=False) as recorder:
        async with client_of(parts) as http:
            assert (await http.get("/health/ready")).status_code == 200
        assert recorder.spans() == []
    assert parts == {"health": None}


async def test_a_gauge_tells_what_it_has_read_and_nothing_while_it_cannot_read() -> None:
    clock = SimClock()
    answers: list[dict[str, int] | StorageUnavailableError] = [
        {"a": 1, "b": 2},
        StorageUnavailableError("away"),
        {"a": 3},
    ]

    async def read() -> dict[str, int]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def values(gauge: StoredGauge) -> dict[object, float]:
        return {(one.attributes or {})["key"]: one.value for one in gauge.observe(None)}  # type: ignore[arg-type]

    with Recorder():
        (work,) = stored_gauges(
            lambda: StoredGauge(
                "test.gauge", read, clock, unit="{order}", description="d", attribute="key", interval_s=10
            )
        )
        gauge = work.run.__self__  # type: ignore[attr-defined]
        running = asyncio.ensure_future(work.run())
        await settle()
        seen = [values(gauge)]
        for _ in range(2):
            await clock.advance(10)
            await settle()
            seen.append(values(gauge))
        work.stop()
        await running
    assert seen == [{"a": 1.0, "b": 2.0}, {}, {"a": 3.0}]


async def test_the_database_is_not_asked_for_gauges_that_are_not_read() -> None:
    with Recorder(measuring=False):
        assert stored_gauges(lambda: pytest.fail("made")) == []

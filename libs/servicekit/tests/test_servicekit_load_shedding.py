"""A service that has more requests than places: what it answers, what it lets through, and what it counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from opentelemetry.metrics import CallbackOptions, Observation

import telemetry
from osenv import SimClock
from osenv.sim_clock import settle
from servicekit.http.application import ServiceApi, build_api
from servicekit.http.limits import AdmissionLimit, RateLimit
from servicekit.http.problem import MEDIA_TYPE, STORAGE_UNAVAILABLE, documented
from servicekit.monitoring import Health

OVERLOADED = "urn:hourglass:problem:overloaded"


class Counted:
    """Stands for a meter and its instruments."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        self.observed: dict[str, Callable[[CallbackOptions], list[Observation]]] = {}

    def create_counter(self, name: str, **_: str) -> Instrument:
        self.sums[name] = 0
        return Instrument(self, name)

    def create_observable_up_down_counter(
        self, name: str, callbacks: list[Callable[[CallbackOptions], list[Observation]]], **_: str
    ) -> None:
        (self.observed[name],) = callbacks


@dataclass
class Instrument:
    counted: Counted
    name: str

    def add(self, amount: int, _attributes: object = None) -> None:
        self.counted.sums[self.name] += amount


@dataclass
class Kitchen:
    """A service whose requests take until they are told to end."""

    http: httpx.AsyncClient
    clock: SimClock
    api: ServiceApi
    end: asyncio.Event
    counted: Counted
    tasks: list[asyncio.Task[httpx.Response]] = field(default_factory=list)

    async def ask(self, method: str, path: str, **headers: str) -> asyncio.Task[httpx.Response]:
        task = asyncio.create_task(self.http.request(method, path, headers=headers))
        self.tasks.append(task)
        await settle()
        return task

    @property
    def in_flight(self) -> int:
        (observation,) = self.counted.observed["hourglass.http.requests.in_flight"](CallbackOptions())
        return int(observation.value)

    @property
    def shed(self) -> int:
        return self.counted.sums["hourglass.http.requests.shed"]


@asynccontextmanager
async def kitchen(
    monkeypatch: pytest.MonkeyPatch, limit: AdmissionLimit | None, rate_limit: RateLimit | None = None
) -> AsyncIterator[Kitchen]:
    telemetry.configure("kitchen", "CRITICAL")
    counted, end, clock = Counted(), asyncio.Event(), SimClock()
    monkeypatch.setattr(telemetry, "meter", lambda _name: counted)
    router = APIRouter()

    @router.post("/dishes")
    async def cook() -> str:
        await end.wait()
        return "cooked"

    @router.get("/dishes", responses=documented(STORAGE_UNAVAILABLE))
    async def taste() -> str:
        await end.wait()
        return "tasted"

    @router.get("/steam")
    async def steam() -> StreamingResponse:
        async def clouds() -> AsyncIterator[bytes]:
            yield b"first "
            await end.wait()
            yield b"last"

        return StreamingResponse(clouds())

    @router.get("/fire")
    async def fire() -> str:
        raise RuntimeError("it burns")

    @router.post("/webhooks/bell")
    async def ring() -> str:
        return "heard"

    api = build_api(
        title="Kitchen", summary="Kitchen", routers=[router], health=Health({}, clock), problem_of_error={},
        tokens=None, rate_limit=rate_limit, clock=clock, admission_limit=limit,
    )  # fmt: skip
    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://kitchen") as http:
        place = Kitchen(http, clock, api, end, counted)
        yield place
        end.set()
        await asyncio.gather(*place.tasks)


async def test_one_request_too_many_is_told_why_and_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kitchen(monkeypatch, AdmissionLimit(1, 500)) as place:
        first = await place.ask("POST", "/dishes")
        second = await place.ask("POST", "/dishes")
        assert place.in_flight == 1
        await place.clock.advance(0.5)
        answer = await second
        assert (answer.status_code, answer.headers["Content-Type"]) == (503, MEDIA_TYPE)
        assert answer.headers["Retry-After"] == "1"
        problem = answer.json()
        assert (problem["type"], problem["status"]) == (OVERLOADED, 503)
        assert problem["title"] == "The service has more work than it can do"
        assert problem["detail"] == (
            "no place for a write request became free in 500 ms: 1 are in work, which is what can be done"
        )
        assert len(problem["trace_id"]) == 32
        place.end.set()
        assert (await first).json() == "cooked"
        assert (place.in_flight, place.shed) == (0, 1)


async def test_who_waits_is_served_as_soon_as_there_is_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kitchen(monkeypatch, AdmissionLimit(1, 500)) as place:
        tasks = [await place.ask("POST", "/dishes") for _ in range(5)]
        place.end.set()
        assert [(await task).status_code for task in tasks] == [200] * 5
        assert (place.in_flight, place.shed) == (0, 0)


async def test_health_and_webhooks_need_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kitchen(monkeypatch, AdmissionLimit(1, 500)) as place:
        await place.ask("POST", "/dishes")
        for method, path in (("GET", "/health/live"), ("GET", "/health/ready"), ("POST", "/webhooks/bell")):
            assert (await place.http.request(method, path)).status_code == 200
        assert place.in_flight == 1


async def test_a_stream_holds_no_place_once_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kitchen(monkeypatch, AdmissionLimit(1, 500)) as place:
        stream = await place.ask("GET", "/steam")
        assert place.in_flight == 0
        await place.ask("GET", "/dishes")
        assert place.in_flight == 1
        place.end.set()
        assert (await stream).text == "first last"


async def test_a_request_that_fails_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kitchen(monkeypatch, AdmissionLimit(1, 500)) as place:
        assert [(await place.http.get("/fire")).status_code for _ in range(3)] == [500] * 3
        assert place.in_flight == 0


async def test_writes_that_hang_do_not_stop_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kitchen(monkeypatch, AdmissionLimit(4, 500)) as place:
        for _ in range(6):
            await place.ask("POST", "/dishes")
        reading = await place.ask("GET", "/dishes")
        assert place.in_flight == 4
        place.end.set()
        assert (await reading).json() == "tasted"


async def test_a_browser_gets_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kitchen(monkeypatch, AdmissionLimit(1, 500)) as place:
        await place.ask("GET", "/dishes")
        page = await place.ask("GET", "/dishes", Accept="text/html,application/xhtml+xml")
        await place.clock.advance(0.5)
        answer = await page
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "<h1>The service has more work than it can do</h1>" in answer.text
        assert "Please try again in 1 s." in answer.text


async def test_a_caller_beyond_its_rate_takes_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kitchen(monkeypatch, AdmissionLimit(1, 500), RateLimit(1, 60)) as place:
        await place.ask("POST", "/dishes")
        greedy = await place.http.post("/dishes")
        assert (greedy.status_code, place.shed) == (429, 0)


async def test_without_a_limit_all_requests_are_in_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kitchen(monkeypatch, None) as place:
        tasks = [await place.ask("POST", "/dishes") for _ in range(50)]
        place.end.set()
        assert {(await task).status_code for task in tasks} == {200}


async def test_the_document_says_so_next_to_the_other_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kitchen(monkeypatch, AdmissionLimit(1, 500)) as place:
        document = place.api.openapi()
    answer = document["paths"]["/dishes"]["post"]["responses"]["503"]
    assert answer["description"] == f"The service has more work than it can do (`{OVERLOADED}`)"
    assert answer["headers"]["Retry-After"]["schema"]["type"] == "integer"
    assert answer["content"][MEDIA_TYPE]["examples"]["overloaded"]["value"]["type"] == OVERLOADED
    both = document["paths"]["/dishes"]["get"]["responses"]["503"]
    assert set(both["content"][MEDIA_TYPE]["examples"]) == {"storage-unavailable", "overloaded"}
    assert "The database does not answer" in both["description"]
    assert OVERLOADED in both["description"]
    for path in ("/health/live", "/webhooks/bell"):
        for operation in document["paths"][path].values():
            assert "503" not in operation["responses"] or "overloaded" not in str(operation["responses"]["503"])

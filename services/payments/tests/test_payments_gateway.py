"""The contract of PaymentGateway, kept by the sandbox and by the scripted gateway alike; and the sandbox's file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from osenv import SimClock
from payments.adapters.sandbox_gateway import OVER_THE_LIMIT, SandboxGateway
from payments.domain.errors import GatewayRefusedError, GatewayUnavailableError
from payments.service.gateway import PATIENCE_S, Captured, Declined, GatewayBook, PatientGateway, PaymentGateway
from payments.testing import ScriptedGateway, Step
from servicekit.adapters.database import Database
from servicekit.config import SQLITE_PREFIX
from servicekit.health import OK

# A gateway, and the clock that it sees; with `declines`, its first capture is declined.
Opened = AbstractAsyncContextManager[tuple[PaymentGateway, SimClock]]
OpenGateway = Callable[[Path, bool], Opened]


@asynccontextmanager
async def open_sandbox(folder: Path, declines: bool) -> AsyncIterator[tuple[PaymentGateway, SimClock]]:
    clock = SimClock()
    gateway = SandboxGateway(str(folder / "gateway.db"), clock, declines_above_minor=99 if declines else None)
    try:
        yield gateway, clock
    finally:
        await gateway.close()


@asynccontextmanager
async def open_scripted(_folder: Path, declines: bool) -> AsyncIterator[tuple[PaymentGateway, SimClock]]:
    clock = SimClock()
    yield ScriptedGateway(clock, *([Step.DECLINE] if declines else [])), clock


GATEWAYS = pytest.mark.parametrize("open_gateway", [open_sandbox, open_scripted])


@GATEWAYS
async def test_a_capture_happens_once_however_often_it_is_asked_for(tmp_path: Path, open_gateway: OpenGateway) -> None:
    async with open_gateway(tmp_path, False) as (gateway, clock):
        first = await gateway.capture("p", 100, "CNY")
        assert first == Captured(clock.wall_ms())
        await clock.advance(5)
        assert set(await asyncio.gather(*(gateway.capture("p", 100, "CNY") for _ in range(5)))) == {first}
        assert await gateway.book() == GatewayBook(100, 0, 1, 0)


@GATEWAYS
async def test_a_decline_is_for_ever_and_moves_no_money(tmp_path: Path, open_gateway: OpenGateway) -> None:
    async with open_gateway(tmp_path, True) as (gateway, _):
        first = await gateway.capture("p", 100, "CNY")
        assert isinstance(first, Declined)
        assert await gateway.capture("p", 100, "CNY") == first
        with pytest.raises(GatewayRefusedError):
            await gateway.refund("r", "p", 100, "CNY")
        assert await gateway.book() == GatewayBook(0, 0, 0, 0)


@GATEWAYS
async def test_a_refund_happens_once_however_often_it_is_asked_for(tmp_path: Path, open_gateway: OpenGateway) -> None:
    async with open_gateway(tmp_path, False) as (gateway, clock):
        await gateway.capture("p", 100, "CNY")
        first = await gateway.refund("r", "p", 100, "CNY")
        assert first.at_ms == clock.wall_ms()
        await clock.advance(5)
        assert set(await asyncio.gather(*(gateway.refund("r", "p", 100, "CNY") for _ in range(5)))) == {first}
        assert await gateway.book() == GatewayBook(100, 100, 1, 1)


@GATEWAYS
async def test_no_payment_gives_back_more_than_it_took(tmp_path: Path, open_gateway: OpenGateway) -> None:
    async with open_gateway(tmp_path, False) as (gateway, _):
        await gateway.capture("p", 100, "CNY")
        await gateway.refund("r1", "p", 60, "CNY")
        for refund in (("r2", "p", 41, "CNY"), ("r2", "p", 10, "EUR"), ("r2", "ghost", 1, "CNY")):
            with pytest.raises(GatewayRefusedError):
                await gateway.refund(*refund)
        await gateway.refund("r2", "p", 40, "CNY")
        assert await gateway.book() == GatewayBook(100, 100, 1, 2)


@GATEWAYS
async def test_an_id_names_one_thing_for_ever(tmp_path: Path, open_gateway: OpenGateway) -> None:
    async with open_gateway(tmp_path, False) as (gateway, _):
        await gateway.capture("p", 100, "CNY")
        await gateway.capture("p2", 100, "CNY")
        await gateway.refund("r", "p", 60, "CNY")
        for amount_minor, currency in ((99, "CNY"), (100, "EUR")):
            with pytest.raises(GatewayRefusedError):
                await gateway.capture("p", amount_minor, currency)
        for refund in (("r", "p2", 60, "CNY"), ("r", "p", 61, "CNY"), ("r", "p", 60, "EUR")):
            with pytest.raises(GatewayRefusedError):
                await gateway.refund(*refund)
        assert await gateway.book() == GatewayBook(200, 60, 2, 1)


async def test_the_sandbox_keeps_its_book_in_its_file(tmp_path: Path) -> None:
    async with open_sandbox(tmp_path, False) as (gateway, _):
        first = await gateway.capture("p", 100, "CNY")
    async with open_sandbox(tmp_path, False) as (gateway, clock):
        await clock.advance(5)
        assert await gateway.book() == GatewayBook(100, 0, 1, 0)
        assert await gateway.capture("p", 100, "CNY") == first


async def test_the_sandbox_declines_what_is_over_its_limit(tmp_path: Path) -> None:
    async with open_sandbox(tmp_path, True) as (gateway, _):
        assert await gateway.capture("p1", 100, "CNY") == Declined(OVER_THE_LIMIT)
        assert isinstance(await gateway.capture("p2", 99, "CNY"), Captured)


async def test_a_sandbox_whose_file_cannot_be_opened_does_not_answer(tmp_path: Path) -> None:
    gateway = SandboxGateway(str(tmp_path / "missing" / "gateway.db"), SimClock())
    patient = PatientGateway(gateway, SimClock())
    try:
        for asking in (gateway.capture("p", 1, "CNY"), gateway.refund("r", "p", 1, "CNY"), gateway.book()):
            with pytest.raises(GatewayUnavailableError, match="unable to open"):
                await asking
        assert "unable to open" in await patient.health()
        (tmp_path / "missing").mkdir()
        assert await patient.health() == OK
    finally:
        await gateway.close()


async def test_a_sandbox_whose_file_breaks_does_not_answer(tmp_path: Path) -> None:
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'gateway.db'}")
    async with open_sandbox(tmp_path, False) as (gateway, _):
        await gateway.capture("p", 1, "CNY")
        async with database.writing() as connection:
            await connection.execute(text("DROP TABLE refunds"))
            await connection.commit()
        await database.dispose()
        with pytest.raises(GatewayUnavailableError):
            await gateway.book()


async def test_a_gateway_is_waited_for_only_so_long() -> None:
    clock = SimClock()
    gateway = ScriptedGateway(clock)
    gateway.book = asyncio.Event().wait  # type: ignore[assignment]  # never answers
    asking = asyncio.create_task(PatientGateway(gateway, clock).health())
    await clock.advance(PATIENCE_S)
    assert await asking == "the gateway gave no answer within 10 s"

"""The database's time, on a machine whose clock is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from osenv import RealClock, SimClock
from servicekit.config import SQLITE_PREFIX
from servicekit.errors import StorageUnavailableError
from servicekit.monitoring import OK, Health
from servicekit.sql.database import ROUND_TRIP_MAX_S, SKEW_TOLD_MS, Database, DatabaseClock
from servicekit.testing import until
from servicekit.testing.databases import NewDatabaseUrl

DAY_MS = 86_400_000


class AheadClock(RealClock):
    """The machine's clock, and a day more."""

    def wall_us(self) -> int:
        return super().wall_us() + DAY_MS * 1000

    def wall_ms(self) -> int:
        return super().wall_ms() + DAY_MS


def clock_on(machine: SimClock, folder: Path) -> DatabaseClock:
    return DatabaseClock(machine, Database(f"{SQLITE_PREFIX}{folder / 'missing.db'}"))


async def test_dates_are_the_databases_where_it_has_a_clock_of_its_own(new_database_url: NewDatabaseUrl) -> None:
    database = Database(new_database_url("orders"))
    clock = DatabaseClock(AheadClock(), database)
    try:
        await clock.measure()
        async with database.autocommit() as connection:
            has_clock = connection.dialect.name == "postgresql"
    finally:
        await database.dispose()
    ahead_ms = clock.wall_ms() - RealClock().wall_ms()
    assert abs(ahead_ms - (0 if has_clock else DAY_MS)) < DAY_MS / 2
    assert abs(clock.skew_ms - (DAY_MS if has_clock else 0)) < DAY_MS / 2


async def test_the_time_goes_on_from_the_measurement_whatever_the_machines_clock_does(tmp_path: Path) -> None:
    machine = SimClock()
    clock = clock_on(machine, tmp_path)
    assert clock.wall_ms() == machine.wall_ms()
    clock.correct(5_000_000, machine.monotonic(), 0.5)
    assert clock.wall_ms() == 4_999_750  # it was said in the middle of the round trip
    machine.set_wall_ms(1)
    await machine.advance(2.25)
    assert clock.wall_ms() == 5_002_000


async def test_a_slow_answer_corrects_nothing_but_the_first_one(tmp_path: Path) -> None:
    machine = SimClock()
    clock = clock_on(machine, tmp_path)
    clock.correct(4_000_000, machine.monotonic(), 2 * ROUND_TRIP_MAX_S)
    before_ms = clock.wall_ms()
    clock.correct(9_000_000, machine.monotonic(), 2 * ROUND_TRIP_MAX_S)
    assert clock.wall_ms() == before_ms
    clock.correct(9_000_000, machine.monotonic(), 0.0)
    assert clock.wall_ms() == 9_000_000


async def test_a_wrong_clock_is_told_once_and_takes_no_process_out_of_service(tmp_path: Path) -> None:
    machine = SimClock()
    clock = clock_on(machine, tmp_path)
    with capture_logs() as lines:
        for ahead_ms in (SKEW_TOLD_MS - 1, SKEW_TOLD_MS, SKEW_TOLD_MS + 5, 0):
            clock.correct(machine.wall_ms() - ahead_ms, machine.monotonic(), 0.0)
            if ahead_ms == SKEW_TOLD_MS:
                report = await Health({"clock": clock.health}, machine).report()
                assert report.is_ready
                assert f"is {SKEW_TOLD_MS} ms ahead" in report.checks["clock"]
    assert [(line["log_level"], line["ahead_ms"]) for line in lines] == [("warning", SKEW_TOLD_MS), ("info", 0)]
    assert await clock.health() == OK


async def test_a_database_that_is_away_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimClock()
    clock = clock_on(machine, tmp_path)
    measured = 0

    async def measure() -> None:
        nonlocal measured
        measured += 1
        if measured == 1:
            raise StorageUnavailableError("away")

    monkeypatch.setattr(clock, "measure", measure)
    running = asyncio.create_task(clock.run())
    while measured < 2:
        await machine.advance(10)
    clock.stop()
    await until(running.done)

"""Transactions of the database adapter: who waits for whom, and what stays after a failure."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from servicekit.adapters import database as database_module
from servicekit.adapters.database import Database
from servicekit.config import SQLITE_PREFIX
from servicekit.errors import StorageUnavailableError


async def count(database: Database) -> int:
    async with database.reading() as connection:
        return int((await connection.execute(text("SELECT count(*) FROM t"))).scalar_one())


async def open_with_table(folder: Path) -> Database:
    database = Database(f"{SQLITE_PREFIX}{folder / 'x.db'}")
    async with database.writing() as connection:
        await connection.execute(text("CREATE TABLE t (n INTEGER)"))
        await connection.commit()
    return database


async def test_a_unit_that_is_not_committed_is_rolled_back(tmp_path: Path) -> None:
    database = await open_with_table(tmp_path)
    try:
        async with database.writing() as connection:
            await connection.execute(text("INSERT INTO t VALUES (1)"))

        async def fail() -> None:
            async with database.writing() as connection:
                await connection.execute(text("INSERT INTO t VALUES (1)"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await count(database) == 0
    finally:
        await database.dispose()


async def test_a_cancelled_unit_is_rolled_back_and_the_next_writer_goes_on(tmp_path: Path) -> None:
    database = await open_with_table(tmp_path)
    try:
        inside = asyncio.Event()

        async def write() -> None:
            async with database.writing() as connection:
                await connection.execute(text("INSERT INTO t VALUES (1)"))
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(write())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with database.writing() as connection:
            await connection.execute(text("INSERT INTO t VALUES (2)"))
            await connection.commit()
        assert await count(database) == 1
    finally:
        await database.dispose()


@pytest.mark.parametrize("rounds", range(1, 12))
async def test_a_unit_cancelled_at_any_step_leaves_all_or_nothing_and_no_lock(tmp_path: Path, rounds: int) -> None:
    database = await open_with_table(tmp_path)
    try:

        async def write() -> None:
            async with database.writing() as connection:
                await connection.execute(text("INSERT INTO t VALUES (1)"))
                await connection.execute(text("INSERT INTO t VALUES (1)"))
                await connection.commit()

        task = asyncio.create_task(write())
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await count(database) in {0, 2}
        await write()
        assert await count(database) in {2, 4}
    finally:
        await database.dispose()


async def test_readers_do_not_wait_for_a_writer_and_see_the_state_before_it(tmp_path: Path) -> None:
    database = await open_with_table(tmp_path)
    try:
        async with database.writing() as connection:
            await connection.execute(text("INSERT INTO t VALUES (1)"))
            assert await count(database) == 0
            await connection.commit()
        assert await count(database) == 1
    finally:
        await database.dispose()


async def test_fifty_writers_at_once_queue_up_and_none_finds_the_database_locked(tmp_path: Path) -> None:
    database = await open_with_table(tmp_path)
    try:

        async def write() -> None:
            async with database.writing() as connection:
                await connection.execute(text("INSERT INTO t VALUES (1)"))
                await connection.commit()

        await asyncio.gather(*(write() for _ in range(50)))
        assert await count(database) == 50
    finally:
        await database.dispose()


async def test_a_database_that_another_process_has_locked_is_reported_as_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_MS", 1)
    database = await open_with_table(tmp_path)
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageUnavailableError, match="locked"):
            async with database.writing():
                pytest.fail("two writers at once")
        other.execute("ROLLBACK")
        async with database.writing() as connection:
            await connection.execute(text("INSERT INTO t VALUES (1)"))
            await connection.commit()
    finally:
        other.close()
        await database.dispose()


async def test_a_path_that_cannot_be_opened_is_reported_as_unavailable(tmp_path: Path) -> None:
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'missing' / 'x.db'}")
    try:
        with pytest.raises(StorageUnavailableError, match="unable to open"):
            async with database.reading():
                pytest.fail("there is no such folder")
    finally:
        await database.dispose()


async def test_dispose_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    database = await open_with_table(tmp_path)
    await asyncio.gather(*(count(database) for _ in range(5)))
    assert set(threading.enumerate()) - before
    await database.dispose()
    executor = {thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")}
    assert set(threading.enumerate()) - before - executor == set()


async def test_health_needs_a_database_that_was_migrated(tmp_path: Path) -> None:
    database = await open_with_table(tmp_path)
    try:
        assert "no such table" in await database.health()
        async with database.writing() as connection:
            await connection.execute(text("CREATE TABLE alembic_version (version_num TEXT)"))
            await connection.commit()
        assert await database.health() == "ok"
    finally:
        await database.dispose()

"""What is SQLite's own: its one write lock, its file, its threads, and a commit that is on the disk."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from servicekit.config import SQLITE_PREFIX
from servicekit.errors import StorageUnavailableError
from servicekit.sql import backends as sqlite_module
from servicekit.sql.database import Database

FULL = 2  # of PRAGMA synchronous


async def open_with_table(folder: Path) -> Database:
    database = Database(f"{SQLITE_PREFIX}{folder / 'x.db'}")
    async with database.writing() as connection:
        await connection.execute(text("CREATE TABLE t (n INTEGER)"))
        await connection.commit()
    return database


async def pragma(database: Database, name: str) -> set[object]:
    """What every connection of the pool says of itself, readers at once and the writer."""
    found: set[object] = set()
    all_are_inside = asyncio.Barrier(sqlite_module.CONNECTIONS_MAX)

    async def ask(*, is_writer: bool) -> None:
        async with database.writing() if is_writer else database.snapshot() as connection:
            found.add((await connection.execute(text(f"PRAGMA {name}"))).scalar_one())
            await all_are_inside.wait()

    readers = [ask(is_writer=False) for _ in range(sqlite_module.CONNECTIONS_MAX - 1)]
    await asyncio.gather(ask(is_writer=True), *readers)
    return found


@pytest.mark.mechanism("U10")
async def test_every_connection_syncs_its_commits_and_checks_its_references(tmp_path: Path) -> None:
    """Bug zoo 34: in WAL mode, NORMAL and OFF answer a commit that a power cut takes back."""
    database = await open_with_table(tmp_path)
    try:
        assert await pragma(database, "synchronous") == {FULL}
        assert await pragma(database, "journal_mode") == {"wal"}
        assert await pragma(database, "foreign_keys") == {1}
    finally:
        await database.dispose()


async def test_a_database_that_another_process_has_locked_is_reported_as_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "BUSY_TIMEOUT_MS", 1)
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
            async with database.snapshot():
                pytest.fail("there is no such folder")
    finally:
        await database.dispose()


async def test_dispose_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    database = await open_with_table(tmp_path)
    await asyncio.gather(*(database.health() for _ in range(5)))
    assert set(threading.enumerate()) - before
    await database.dispose()
    executor = {thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")}
    assert set(threading.enumerate()) - before - executor == set()

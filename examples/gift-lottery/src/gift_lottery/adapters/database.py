"""The lottery's SQLite file, opened so that it keeps what it promises.

A commit is on the disk (WAL, synchronous=FULL); a transaction takes the write lock before it reads.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gift_lottery.tables import metadata, pot

BUSY_TIMEOUT_MS = 5_000
POT = "gifts"


async def open_database(path: str, gifts: int) -> AsyncEngine:
    """The engine of the file, which is made with `gifts` in its pot if it is not there yet."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    event.listen(engine.sync_engine, "connect", _open_sqlite)
    event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(insert(pot).values(name=POT, gifts=gifts).on_conflict_do_nothing())
    return engine


def _open_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver would begin its transactions late, and never IMMEDIATE
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()

"""SQLite, opened so that it keeps what it promises:

- WAL, so that readers do not wait for the writer; synchronous=FULL, so that a commit is on the disk (bug zoo 34);
- foreign keys are enforced;
- a writing transaction is BEGIN IMMEDIATE: it takes the write lock before it reads, so that what it has read cannot
  change before it writes; a reading transaction is a plain BEGIN and takes no write lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from sqlalchemy import Connection, event, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from servicekit.adapters.failed_units import FailedUnits
from servicekit.adapters.instrumentation import trace_statements
from servicekit.adapters.sqlite_connection import BEGIN_WRITING, OneHopConnection
from servicekit.adapters.storage_errors import sqlite_errors

# Another process (a shell, a migration) may hold the write lock; inside this process a lock queues writers.
BUSY_TIMEOUT_MS = 5_000
CONNECTIONS_MAX = 8
THREAD_END_MAX_S = 2.0

_WRITING = "servicekit_writing"


class SqliteDatabase:
    """Implements `DatabaseBackend`; at most one unit of the process writes at a time."""

    def __init__(self, url: str) -> None:
        """`url` is `sqlite+aiosqlite:///<path of a file>`. Raises ValueError when it names none."""
        path = make_url(url).database
        if path is None:
            raise ValueError(f"{url!r} names no file")
        self._path = path
        self._connections: list[OneHopConnection] = []
        self._engine: AsyncEngine = create_async_engine(
            url, async_creator=self._connect, pool_size=CONNECTIONS_MAX, max_overflow=0
        )
        self._writing_engine = self._engine.execution_options(**{_WRITING: True})
        self._write_lock = asyncio.Lock()
        event.listen(self._engine.sync_engine, "connect", _open)
        event.listen(self._engine.sync_engine, "begin", _begin)
        self._failed_units = FailedUnits(self._engine.sync_engine)
        trace_statements(self._engine)

    def looking(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """As `reading`."""
        return self.reading()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        async with self._unit(self._engine) as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        async with self._write_lock, self._unit(self._writing_engine) as connection:
            yield connection

    def migrating(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """As `writing`: the write lock keeps other processes out."""
        return self.writing()

    async def dispose(self) -> None:
        """Close every connection, and with it its thread."""
        await self._engine.dispose()
        # A thread that answers after the event loop has closed dies of it. Those that the engine has given up, because
        # their unit was cancelled or their file could not be opened, may still be at work.
        for connection in self._connections:
            await connection.ended(THREAD_END_MAX_S)

    @asynccontextmanager
    async def _unit(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        with sqlite_errors():
            async with engine.connect() as connection, self._failed_units.transaction(connection):
                yield connection

    async def _connect(self) -> OneHopConnection:
        connection = OneHopConnection(self._path)
        self._connections = [*(known for known in self._connections if known.has_thread), connection]
        await connection
        return connection


def _open(connection: Any, _record: Any) -> None:
    # The driver must not begin transactions by itself: it would begin them late, and never IMMEDIATE.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql(BEGIN_WRITING if writing else "BEGIN")

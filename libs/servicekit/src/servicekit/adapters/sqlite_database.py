"""SQLite for the services: the database, and a cursor with few hand-overs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import aiosqlite
from sqlalchemy import Connection, event, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from servicekit.adapters.failed_units import FailedUnits
from servicekit.adapters.instrumentation import trace_statements
from servicekit.adapters.storage_errors import sqlite_errors

# ----------------------------------------------------------------------------------------------------------------------
# aiosqlite with fewer hand-overs to its thread: 3 for placing an order instead of 31.
#
# aiosqlite hands creating a cursor, executing, fetching and closing to the connection's thread one by one, and each
# hand-over costs more than a statement by primary key itself. Here a statement is one hand-over; and inside a writing
# transaction it is none: whoever holds the write lock waits for nobody until COMMIT, which writes, syncs and
# checkpoints, and which goes to the thread as BEGIN IMMEDIATE does. So nothing that may wait runs on the event loop.
#
# Invariant: loop and thread never use the connection at the same time. The loop uses it only while `holds_write_lock`,
# which is set after the thread has answered BEGIN IMMEDIATE, and taken away before COMMIT and ROLLBACK are handed over.


BEGIN_WRITING = "BEGIN IMMEDIATE"


class OneHopCursor(aiosqlite.Cursor):
    """Fetches all rows together with executing; a statement is then over, and there is nothing left to close."""

    def __init__(self, connection: OneHopConnection, cursor: sqlite3.Cursor) -> None:
        super().__init__(connection, cursor)
        self._owner = connection
        self._rows: list[Any] = []

    async def execute(self, sql: str, parameters: Iterable[Any] | None = None) -> OneHopCursor:
        connection = self._owner
        if connection.holds_write_lock:
            self._rows = _execute_and_fetch(self._cursor, sql, parameters or ())
        else:
            self._rows = await connection.hand_over(partial(_execute_and_fetch, self._cursor, sql, parameters or ()))
            connection.holds_write_lock = sql == BEGIN_WRITING
        return self

    async def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        # Not even sqlite3's own close: after a cancellation the thread may still be executing.
        self._rows = []


class OneHopConnection(aiosqlite.Connection):
    """A connection whose cursors are made without the thread: making one touches no file."""

    holds_write_lock = False

    def __init__(self, path: str) -> None:
        super().__init__(partial(sqlite3.connect, path, check_same_thread=False), iter_chunk_size=64)
        self._thread.daemon = True  # a connection that nobody closed does not keep the process alive

    @property
    def has_thread(self) -> bool:
        return self._thread.is_alive()

    async def hand_over(self, action: Callable[[], list[Any]]) -> list[Any]:
        """What `action` returns on the connection's thread."""
        result: list[Any] = await self._execute(action)  # type: ignore[no-untyped-call]
        return result

    async def ended(self, seconds_max: float) -> None:
        """Return when the thread of a closed connection is gone, or after `seconds_max`."""
        if self.has_thread:
            await asyncio.to_thread(self._thread.join, seconds_max)

    async def commit(self) -> None:
        self.holds_write_lock = False
        await super().commit()

    async def rollback(self) -> None:
        self.holds_write_lock = False
        await super().rollback()

    def cursor(self) -> OneHopCursor:  # type: ignore[override]  # SQLAlchemy enters it, and never awaits it
        return OneHopCursor(self, self._conn.cursor())


def _execute_and_fetch(cursor: sqlite3.Cursor, sql: str, parameters: Iterable[Any]) -> list[Any]:
    cursor.execute(sql, parameters)  # type: ignore[arg-type]
    return cursor.fetchall() if cursor.description else []


# ----------------------------------------------------------------------------------------------------------------------
# SQLite, opened so that it keeps what it promises:
#
# - WAL, so that readers do not wait for the writer; synchronous=FULL, so that a commit is on the disk (bug zoo 34);
# - foreign keys are enforced;
# - a writing transaction is BEGIN IMMEDIATE: it takes the write lock before it reads, so that what it has read cannot
#   change before it writes; a reading transaction is a plain BEGIN and takes no write lock.


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

"""The database engine. SQLite is opened so that it keeps what it promises:

- WAL, so that readers do not wait for the writer; synchronous=FULL, so that a commit is on the disk (bug zoo 34);
- foreign keys are enforced;
- a writing transaction is BEGIN IMMEDIATE: it takes the write lock before it reads, so that what it has read cannot
  change before it writes; a reading transaction is a plain BEGIN and takes no write lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Connection, event, make_url, text
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from servicekit.adapters.sqlite_connection import BEGIN_WRITING, OneHopConnection
from servicekit.errors import StorageUnavailableError
from servicekit.health import OK

# Another process (a shell, a migration) may hold the write lock; inside this process a lock queues writers.
BUSY_TIMEOUT_MS = 5_000
CONNECTIONS_MAX = 8
THREAD_END_MAX_S = 2.0

_WRITING = "servicekit_writing"
_HEALTH_QUERY = text("SELECT version_num FROM alembic_version")


class Database:
    """Connections for reading and for writing; at most one writes at a time.

    Invariant: a connection that is given back is rolled back, whatever was not committed and however its user ended.
    """

    def __init__(self, url: str) -> None:
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
        event.listen(self._engine.sync_engine, "connect", _open_sqlite)
        event.listen(self._engine.sync_engine, "begin", _begin_sqlite)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction that is rolled back at the end. Raises StorageUnavailableError."""
        async with _storage_errors(), self._engine.connect() as connection:
            await connection.begin()
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction that is rolled back unless it was committed. Raises StorageUnavailableError."""
        async with self._write_lock, _storage_errors(), self._writing_engine.connect() as connection:
            await connection.begin()
            yield connection

    async def health(self) -> str:
        """ "ok" if the database answers and was migrated, or what is wrong."""
        try:
            async with self.reading() as connection:
                await connection.execute(_HEALTH_QUERY)
        except StorageUnavailableError as error:
            return str(error)
        return OK

    async def dispose(self) -> None:
        """Close every connection, and with it its thread."""
        await self._engine.dispose()
        # A thread that answers after the event loop has closed dies of it. Those that the engine has given up, because
        # their unit was cancelled or their file could not be opened, may still be at work.
        for connection in self._connections:
            await connection.ended(THREAD_END_MAX_S)

    async def _connect(self) -> OneHopConnection:
        connection = OneHopConnection(self._path)
        self._connections = [*(known for known in self._connections if known.has_thread), connection]
        await connection
        return connection


@asynccontextmanager
async def _storage_errors() -> AsyncIterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeoutError) as error:
        cause = getattr(error, "orig", None) or error
        raise StorageUnavailableError(f"the database does not answer: {cause}") from error


def _open_sqlite(connection: Any, _record: Any) -> None:
    # The driver must not begin transactions by itself: it would begin them late, and never IMMEDIATE.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql(BEGIN_WRITING if writing else "BEGIN")

"""PostgreSQL, asked in as few round trips as there are statements, plus BEGIN and COMMIT:

- what holds for a session is said while it is opened, and statements are prepared once for each connection;
- a connection that the server has closed is noticed by its socket, not by asking;
- nothing is locked ahead: writing is READ COMMITTED, and rows decide by compare-and-set, constraints and FOR UPDATE;
  reading is one snapshot (REPEATABLE READ, READ ONLY).

Nothing waits for ever: the server gives up a lock, a statement and an idle transaction, and when the server itself says
nothing any more, the driver gives it up a little later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from sqlalchemy import bindparam, event, func, select, text
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from servicekit.adapters.failed_units import FailedUnits
from servicekit.adapters.instrumentation import trace_statements
from servicekit.adapters.storage_errors import connection_errors, postgresql_errors

LOCK_MAX_MS = 2_000
STATEMENT_MAX_MS = 5_000
IDLE_IN_TRANSACTION_MAX_MS = 10_000
ANSWER_MAX_S = 6.0  # the server's own limits come first
CONNECT_MAX_S = 3.0
FREE_CONNECTION_MAX_S = 5.0
PREPARED_STATEMENTS_MAX = 256  # of a connection; a service has fewer than that

MIGRATION_LOCK_MAX_MS = 60_000  # until another process has migrated, or its units have ended
MIGRATION_LOCK = 0x486F_7572  # any number that no other program uses for an advisory lock in this database

_CHECK_AT_ONCE = text("SET CONSTRAINTS ALL IMMEDIATE")
_TAKE_MIGRATION_LOCK = select(func.pg_advisory_xact_lock(bindparam("lock")))


class PostgresqlDatabase:
    """Implements `DatabaseBackend`. Any number of units write at a time, as many as there are connections."""

    def __init__(self, url: str, pool_size: int) -> None:
        """`url` is `postgresql+asyncpg://user[:password]@host[:port]/database`."""
        self._url = url
        self._engine = create_async_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=FREE_CONNECTION_MAX_S,
            pool_use_lifo=True,
            connect_args={
                "timeout": CONNECT_MAX_S,
                "command_timeout": ANSWER_MAX_S,
                "prepared_statement_cache_size": PREPARED_STATEMENTS_MAX,
                "server_settings": _settings(LOCK_MAX_MS, STATEMENT_MAX_MS),
            },
        )
        self._looking_engine = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._reading_engine = self._engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        event.listen(self._engine.sync_engine, "checkout", _require_open)
        event.listen(self._engine.sync_engine, "close", _end)
        self._failed_units = FailedUnits(self._engine.sync_engine)
        trace_statements(self._engine)

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[AsyncConnection]:
        async with _unit(self._looking_engine, self._failed_units) as connection:
            yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        async with _unit(self._reading_engine, self._failed_units) as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        async with _unit(self._engine, self._failed_units) as connection:
            yield connection

    @asynccontextmanager
    async def migrating(self) -> AsyncIterator[AsyncConnection]:
        """A connection of its own, on which a statement may take as long as it needs.

        References are checked at once: a table whose rows wait for their check cannot be altered, nor dropped.
        """
        settings = _settings(MIGRATION_LOCK_MAX_MS, 0)
        engine = create_async_engine(
            self._url, poolclass=NullPool, connect_args={"timeout": CONNECT_MAX_S, "server_settings": settings}
        )
        async with _unit(engine, FailedUnits(engine.sync_engine)) as connection:
            await connection.execute(_TAKE_MIGRATION_LOCK, {"lock": MIGRATION_LOCK})
            await connection.execute(_CHECK_AT_ONCE)
            yield connection

    async def dispose(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


@asynccontextmanager
async def _unit(engine: AsyncEngine, failed_units: FailedUnits) -> AsyncIterator[AsyncConnection]:
    async with AsyncExitStack() as stack:
        with connection_errors():
            connection = await stack.enter_async_context(engine.connect())
        with postgresql_errors():
            try:
                async with failed_units.transaction(connection):
                    yield connection
            except OSError:  # no answer in time: whatever the connection says from now on belongs to nobody
                if not connection.invalidated:
                    await connection.invalidate()
                raise
            finally:
                if connection.in_transaction():
                    await _roll_back(connection)


async def _roll_back(connection: AsyncConnection) -> None:
    """What was not committed. A server that has gone has rolled back itself: nobody needs to hear of it."""
    try:
        await connection.rollback()
    except (DBAPIError, OSError):
        await connection.invalidate()


def _settings(lock_max_ms: int, statement_max_ms: int) -> dict[str, str]:
    return {
        "application_name": "hourglass",
        "jit": "off",  # compiling a statement takes longer than any of ours
        "lock_timeout": str(lock_max_ms),
        "statement_timeout": str(statement_max_ms),
        "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MAX_MS),
    }


def _require_open(connection: Any, _record: Any, _proxy: Any) -> None:
    """The pool opens another one instead: the server was restarted, or an operator has ended the session."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError("the server has closed the connection")


def _end(connection: Any, _record: Any) -> None:
    """Without a farewell, which waits for a server that may be silent. It rolls back what is open all the same."""
    connection.driver_connection.terminate()

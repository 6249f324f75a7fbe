"""The two kinds of database, SQLite and PostgreSQL: their guarantees, and the rollback of failed units.

What a driver raises comes out as what a service understands: StorageUnavailableError when the same request may succeed
a moment later. A constraint that is violated stays an IntegrityError, and a mistake in the code stays what it is.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import aiosqlite
from sqlalchemy import Connection, CursorResult, bindparam, event, func, make_url, select, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncTransaction, create_async_engine
from sqlalchemy.pool import NullPool

from servicekit.errors import StorageUnavailableError
from servicekit.monitoring import trace_statements

# PostgreSQL's manual, appendix A: serialization failure, deadlock, lock time-out, end of an idle transaction; and the
# classes: connection, resources (connections, disk, memory), intervention (statement time-out, shutdown), input/output.
TRY_AGAIN_STATES = frozenset({"40001", "40P01", "55P03", "25P03"})
TRY_AGAIN_CLASSES = ("08", "53", "57", "58")


def unavailable(error: BaseException) -> StorageUnavailableError:
    """The error of a service for one of a driver."""
    cause = getattr(error, "orig", None) or error
    cause = cause.__cause__ or cause  # SQLAlchemy repeats what asyncpg has raised, with the name of its class
    return StorageUnavailableError(f"the database does not answer: {str(cause) or 'it takes too long'}")


@contextmanager
def connection_errors() -> Iterator[None]:
    """While a connection is opened: whatever fails, there is none."""
    try:
        yield
    except (DBAPIError, PoolTimeoutError, OSError) as error:
        raise unavailable(error) from error


@contextmanager
def sqlite_errors() -> Iterator[None]:
    """In a transaction with SQLite."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeoutError) as error:
        raise unavailable(error) from error


@contextmanager
def postgresql_errors() -> Iterator[None]:
    """In a transaction with PostgreSQL. An OSError is a connection that broke, or a TimeoutError of the driver's."""
    try:
        yield
    except DBAPIError as error:
        if error.connection_invalidated or _may_try_again(getattr(error.orig, "sqlstate", None)):
            raise unavailable(error) from error
        raise
    except OSError as error:
        raise unavailable(error) from error


def _may_try_again(state: str | None) -> bool:
    return state is not None and (state in TRY_AGAIN_STATES or state.startswith(TRY_AGAIN_CLASSES))


def violated_table(error: IntegrityError) -> str | None:
    """The table whose constraint a statement has violated. Only PostgreSQL tells it."""
    return getattr(getattr(error.orig, "__cause__", None), "table_name", None)


class FailedUnitError(RuntimeError):
    """A mistake in the code: the error of a statement was caught, and then the unit was committed."""


class UnitConnection(AsyncConnection):
    """A connection that knows whether something has failed on it that was not rolled back.

    - A unit in which a statement has failed is not committed. PostgreSQL answers COMMIT in such a transaction with a
      rollback, and calls that no error: a unit that had caught the error of the statement would believe that everything
      was kept. SQLite would keep the rest. What failed inside a savepoint that was rolled back is forgotten with it.
    - A commit that fails is rolled back. SQLite leaves the transaction open when a commit fails, and SQLAlchemy
      believes that it is over: the connection would go back to the pool with the write lock.

    SQLAlchemy's events would tell the same. An engine that has any calls them for each connection, transaction and
    statement, which takes a fifth of the time of an order's SQL.
    """

    _has_failed = False

    async def execute(self, *arguments: Any, **options: Any) -> CursorResult[Any]:
        with self._noting_failure():
            result: CursorResult[Any] = await super().execute(*arguments, **options)
        return result

    async def run_sync(self, *arguments: Any, **options: Any) -> Any:
        with self._noting_failure():
            return await super().run_sync(*arguments, **options)

    def begin_nested(self) -> AsyncTransaction:
        return _Savepoint(self, nested=True)

    async def commit(self) -> None:
        """Raises FailedUnitError."""
        if self._has_failed:
            raise FailedUnitError("a statement of this unit has failed before; it can only be rolled back")
        with self._noting_failure():
            await super().commit()

    @asynccontextmanager
    async def without_leftovers(self) -> AsyncIterator[None]:
        """Afterwards nothing is open of a transaction that could not be committed."""
        try:
            yield
        finally:
            if self._has_failed and not self.in_transaction() and not self.invalidated:
                await super().run_sync(_roll_back_driver)

    def forget_failure(self) -> None:
        """What has failed was rolled back."""
        self._has_failed = False

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._has_failed = True
            raise


class _Savepoint(AsyncTransaction):
    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        if error[0] is not None:
            cast(UnitConnection, self.connection).forget_failure()


def _roll_back_driver(connection: Connection) -> None:
    connection.connection.rollback()


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
    """A connection whose cursors are made without the thread: making one touches no file.

    aiosqlite hands creating a cursor, executing, fetching and closing to the connection's thread one by one, and each
    hand-over costs more than a statement by primary key itself. Here a statement is one hand-over; and inside a writing
    transaction it is none: the holder of the write lock waits for nothing until COMMIT, which writes, syncs and
    checkpoints, and which goes to the thread as BEGIN IMMEDIATE does. So nothing that may wait runs on the event loop.

    Invariant: loop and thread never use the connection at the same time. The loop uses it only while
    `holds_write_lock`, which is set after the thread has answered BEGIN IMMEDIATE, and taken away before COMMIT and
    ROLLBACK are handed over.
    """

    holds_write_lock = False

    def __init__(self, path: str) -> None:
        super().__init__(partial(sqlite3.connect, path, check_same_thread=False), iter_chunk_size=64)
        self._thread.daemon = True  # a connection that was not closed does not keep the process alive

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


# Another process (a shell, a migration) may hold the write lock; inside this process a lock queues writers.
BUSY_TIMEOUT_MS = 5_000
CONNECTIONS_MAX = 8
THREAD_END_MAX_S = 2.0

_WRITING = "servicekit_writing"


class SqliteDatabase:
    """Implements `DatabaseBackend`; at most one unit of the process writes at a time.

    SQLite, opened so that it keeps what it promises:

    - WAL, so that readers do not wait for the writer; synchronous=FULL, so that a commit is on the disk (bug zoo 34);
    - foreign keys are enforced;
    - a writing transaction is BEGIN IMMEDIATE: it takes the write lock before it reads, so that what it has read cannot
      change before it writes; a reading transaction is a plain BEGIN and takes no write lock.
    """

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
        trace_statements(self._engine)

    def autocommit(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """As `reading`."""
        return self.snapshot()

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
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
            connection = UnitConnection(engine)
            async with connection, connection.without_leftovers():
                await connection.begin()
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
    """Implements `DatabaseBackend`. Any number of units write at a time, as many as there are connections.

    PostgreSQL, asked in as few round trips as there are statements, plus BEGIN and COMMIT:

    - what holds for a session is said while it is opened, and statements are prepared once for each connection;
    - a connection that the server has closed is noticed by its socket, not by asking;
    - nothing is locked ahead: writing is READ COMMITTED, and rows decide by compare-and-set, constraints and FOR
      UPDATE; reading is one snapshot (REPEATABLE READ, READ ONLY).

    Nothing waits for ever: the server gives up a lock, a statement and an idle transaction, and when the server itself
    says nothing any more, the driver gives it up a little later.
    """

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
        event.listen(self._engine.sync_engine, "checkout", _require_open)
        event.listen(self._engine.sync_engine, "close", _end)
        trace_statements(self._engine)

    def autocommit(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return _unit(self._engine, isolation_level="AUTOCOMMIT")

    def snapshot(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return _unit(self._engine, isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return _unit(self._engine)

    @asynccontextmanager
    async def migrating(self) -> AsyncIterator[AsyncConnection]:
        """A connection of its own, on which a statement may take as long as it needs.

        References are checked at once: a table whose rows wait for their check cannot be altered, nor dropped.
        """
        settings = _settings(MIGRATION_LOCK_MAX_MS, 0)
        engine = create_async_engine(
            self._url, poolclass=NullPool, connect_args={"timeout": CONNECT_MAX_S, "server_settings": settings}
        )
        async with _unit(engine) as connection:
            await connection.execute(_TAKE_MIGRATION_LOCK, {"lock": MIGRATION_LOCK})
            await connection.execute(_CHECK_AT_ONCE)
            yield connection

    async def dispose(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


@asynccontextmanager
async def _unit(engine: AsyncEngine, **options: Any) -> AsyncIterator[AsyncConnection]:
    """SQLAlchemy begins a transaction with the first statement."""
    async with AsyncExitStack() as stack:
        with connection_errors():
            connection = UnitConnection(engine)
            await stack.enter_async_context(connection)
        if options:
            await connection.execution_options(**options)
        with postgresql_errors():
            try:
                async with connection.without_leftovers():
                    yield connection
            except OSError:  # no answer in time: later answers on this connection belong to no statement
                if not connection.invalidated:
                    await connection.invalidate()
                raise
            finally:
                if connection.in_transaction():
                    await _roll_back(connection)


async def _roll_back(connection: AsyncConnection) -> None:
    """What was not committed. A server that has gone has rolled back itself, so its errors are ignored."""
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
    """Close at once: an orderly close may wait for a silent server. The server rolls back what is open all the same."""
    connection.driver_connection.terminate()

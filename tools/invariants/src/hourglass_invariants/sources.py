"""The three databases, SQLite or PostgreSQL, each read as of one moment, and copied into one SQLite in memory.

Invariants: a database is opened read-only, so that a check neither makes nor changes one. Consequences are read before
their causes, which are orders, payments, gateway: what orders has heard from payments, and payments from the gateway,
is in what is read afterwards, also while the shop trades.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from hourglass_invariants.wanted import WANTED, Columns, Rows, SourceUnavailableError, require_columns

ALLOWED = "sqlite+aiosqlite:///<file> or postgresql+asyncpg://user:password@host:port/database"
BUSY_TIMEOUT_S = 5.0  # of SQLite
CONNECT_TIMEOUT_S = 5.0
STATEMENT_TIMEOUT_S = 60.0

_COLUMNS = """
    SELECT column_name FROM information_schema.columns
    WHERE table_schema = ANY (current_schemas(false)) AND table_name = $1
"""


async def read_sources(
    urls: Mapping[str, str], wanted: Mapping[str, Mapping[str, Columns]] = WANTED
) -> dict[str, Mapping[str, Rows]]:
    """The rows of each schema of `wanted`, at the URL of its name: as tuples of those columns, by table.

    Raises SourceUnavailableError, SchemaMismatchError.
    """
    return {name: await _read_source(name, urls[name], tables) for name, tables in wanted.items()}


@contextmanager
def in_memory(rows: Mapping[str, Mapping[str, Rows]]) -> Iterator[sqlite3.Connection]:
    """The rows as tables `<schema>.<table>` of a connection that is closed at the end."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.row_factory = sqlite3.Row
        for schema, tables in WANTED.items():
            connection.execute(f"ATTACH ':memory:' AS {schema}")
            for table, columns in tables.items():
                connection.execute(f"CREATE TABLE {schema}.{table} ({', '.join(columns)})")
                places = ", ".join("?" * len(columns))
                connection.executemany(
                    f"INSERT INTO {schema}.{table} VALUES ({places})",  # noqa: S608 - names of our own
                    rows[schema][table],
                )
        yield connection
    finally:
        connection.close()


async def _read_source(name: str, text: str, tables: Mapping[str, Columns]) -> Mapping[str, Rows]:
    url = _parse(name, text)
    if url.get_backend_name() == "sqlite" and url.database:
        return await _read_sqlite(name, url.database, tables)
    if url.get_backend_name() == "postgresql" and url.database:
        return await _read_postgresql(name, url, tables)
    shown = url.render_as_string(hide_password=True)
    raise SourceUnavailableError(f"the database of {name} is {shown!r}; allowed is {ALLOWED}")


def _parse(name: str, text: str) -> URL:
    try:
        return make_url(text)
    except ArgumentError:
        raise SourceUnavailableError(f"the database of {name} is {text!r}; allowed is {ALLOWED}") from None


async def _read_sqlite(name: str, path: str, wanted: Mapping[str, Columns]) -> Mapping[str, Rows]:
    """The wanted columns of every wanted table, all of one moment.

    Raises SourceUnavailableError and SchemaMismatchError.
    """
    return await asyncio.to_thread(_read_file, name, path, wanted)


def _read_file(name: str, path: str, wanted: Mapping[str, Columns]) -> Mapping[str, Rows]:
    file = Path(path)
    if not file.is_file():
        raise SourceUnavailableError(f"the database of {name} is not there: no file {path}")
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)) as own:
            own.isolation_level = None
            own.execute("BEGIN")  # all tables are read as of the first statement
            require_columns(name, path, wanted, {table: _sqlite_columns(own, table) for table in wanted})
            return {table: _sqlite_rows(own, table, columns) for table, columns in wanted.items()}
    except sqlite3.Error as error:
        raise SourceUnavailableError(f"the database of {name} at {path} cannot be read: {error}") from error


def _sqlite_columns(connection: sqlite3.Connection, table: str) -> Iterable[str]:
    return [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _sqlite_rows(connection: sqlite3.Connection, table: str, columns: Columns) -> Sequence[tuple[object, ...]]:
    names = ", ".join(f'"{column}"' for column in columns)
    return connection.execute(f'SELECT {names} FROM "{table}"').fetchall()  # noqa: S608 - names of our own


async def _read_postgresql(name: str, url: URL, wanted: Mapping[str, Columns]) -> Mapping[str, Rows]:
    """The wanted columns of every wanted table, all of one moment.

    Raises SourceUnavailableError and SchemaMismatchError.
    """
    where = url.render_as_string(hide_password=True)
    try:
        connection = await asyncpg.connect(
            host=url.host,
            port=url.port,
            user=url.username,
            password=url.password,
            database=url.database,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=STATEMENT_TIMEOUT_S,
        )
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise SourceUnavailableError(f"the database of {name} at {where} does not answer: {error}") from error
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            found = {table: [row[0] for row in await connection.fetch(_COLUMNS, table)] for table in wanted}
            require_columns(name, where, wanted, found)
            return {table: await _postgresql_rows(connection, table, columns) for table, columns in wanted.items()}
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise SourceUnavailableError(f"the database of {name} at {where} cannot be read: {error}") from error
    finally:
        connection.terminate()


async def _postgresql_rows(
    connection: asyncpg.Connection, table: str, columns: Columns
) -> Sequence[tuple[object, ...]]:
    names = ", ".join(f'"{column}"' for column in columns)
    return [tuple(row) for row in await connection.fetch(f'SELECT {names} FROM "{table}"')]  # noqa: S608

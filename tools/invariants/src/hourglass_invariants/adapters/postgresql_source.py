"""Rows of a PostgreSQL database, read in one read-only transaction that sees one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import URL

from hourglass_invariants.errors import SourceUnavailableError
from hourglass_invariants.wanted import Columns, Rows, require_columns

CONNECT_TIMEOUT_S = 5.0
STATEMENT_TIMEOUT_S = 60.0

_COLUMNS = """
    SELECT column_name FROM information_schema.columns
    WHERE table_schema = ANY (current_schemas(false)) AND table_name = $1
"""


async def read_postgresql(name: str, url: URL, wanted: Mapping[str, Columns]) -> Mapping[str, Rows]:
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
            return {table: await _rows(connection, table, columns) for table, columns in wanted.items()}
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise SourceUnavailableError(f"the database of {name} at {where} cannot be read: {error}") from error
    finally:
        connection.terminate()


async def _rows(connection: asyncpg.Connection, table: str, columns: Columns) -> Sequence[tuple[object, ...]]:
    names = ", ".join(f'"{column}"' for column in columns)
    return [tuple(row) for row in await connection.fetch(f'SELECT {names} FROM "{table}"')]  # noqa: S608

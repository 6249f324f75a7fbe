"""Rows of a SQLite file, opened read-only: a check neither makes a database nor changes one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from hourglass_invariants.errors import SourceUnavailableError
from hourglass_invariants.wanted import Columns, Rows, require_columns

BUSY_TIMEOUT_S = 5.0


async def read_sqlite(name: str, path: str, wanted: Mapping[str, Columns]) -> Mapping[str, Rows]:
    """The wanted columns of every wanted table, all of one moment.

    Raises SourceUnavailableError and SchemaMismatchError.
    """
    return await asyncio.to_thread(_read, name, path, wanted)


def _read(name: str, path: str, wanted: Mapping[str, Columns]) -> Mapping[str, Rows]:
    file = Path(path)
    if not file.is_file():
        raise SourceUnavailableError(f"the database of {name} is not there: no file {path}")
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)) as own:
            own.isolation_level = None
            own.execute("BEGIN")  # all tables are read as of the first statement
            require_columns(name, path, wanted, {table: _columns(own, table) for table in wanted})
            return {table: _rows(own, table, columns) for table, columns in wanted.items()}
    except sqlite3.Error as error:
        raise SourceUnavailableError(f"the database of {name} at {path} cannot be read: {error}") from error


def _columns(connection: sqlite3.Connection, table: str) -> Iterable[str]:
    return [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _rows(connection: sqlite3.Connection, table: str, columns: Columns) -> Sequence[tuple[object, ...]]:
    names = ", ".join(f'"{column}"' for column in columns)
    return connection.execute(f'SELECT {names} FROM "{table}"').fetchall()  # noqa: S608 - names of our own

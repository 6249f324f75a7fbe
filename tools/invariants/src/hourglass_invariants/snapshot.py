"""The three databases in one: an SQLite in memory with the schemas orders, payments and gateway.

Invariant: consequences are read before their causes, which are orders, payments, gateway. What orders has heard from
payments, and payments from the gateway, is therefore in what is read afterwards, also while the shop trades.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from hourglass_invariants.adapters.postgresql_source import read_postgresql
from hourglass_invariants.adapters.sqlite_source import read_sqlite
from hourglass_invariants.errors import SourceUnavailableError
from hourglass_invariants.wanted import WANTED, Columns, Rows

ALLOWED = "sqlite+aiosqlite:///<file> or postgresql+asyncpg://user:password@host:port/database"


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
        return await read_sqlite(name, url.database, tables)
    if url.get_backend_name() == "postgresql" and url.database:
        return await read_postgresql(name, url, tables)
    shown = url.render_as_string(hide_password=True)
    raise SourceUnavailableError(f"the database of {name} is {shown!r}; allowed is {ALLOWED}")


def _parse(name: str, text: str) -> URL:
    try:
        return make_url(text)
    except ArgumentError:
        raise SourceUnavailableError(f"the database of {name} is {text!r}; allowed is {ALLOWED}") from None

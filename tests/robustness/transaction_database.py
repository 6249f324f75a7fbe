"""The application's database: real SQLite behind the production listener, without aiosqlite's thread.

Simulated time would not wait for a thread. So a connection does everything at once, on the event loop; what SQLite, the
driver's SQL and SQLAlchemy do is otherwise what they always do. A lock that another connection holds is an error at
once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import aiosqlite
from sqlalchemy import Column, MetaData, String, Table, create_engine, event
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from mqclient.sqlalchemy import TransactionTable

T = TypeVar("T")

METADATA = MetaData()
# An order can be placed by one attempt only.
ORDERS = Table(
    "orders",
    METADATA,
    Column("order_id", String, primary_key=True),
    Column("body", String, nullable=False),
    Column("transaction_id", String, nullable=False),
)
TRANSACTIONS = TransactionTable(METADATA)


class Row(NamedTuple):
    """Of a committed order."""

    order_id: str
    body: str
    transaction_id: str


class _InlineConnection(aiosqlite.Connection):
    """Works on the event loop, at once."""

    async def _execute(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return fn(*args, **kwargs)

    def __await__(self) -> Generator[Any, None, _InlineConnection]:
        self._connection = self._connector()
        yield from ()  # it never waits
        return self

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ShopDatabase:
    """One file, with an empty shop; of all clients, and of one history after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        engine = create_engine(f"sqlite:///{path}")
        METADATA.create_all(engine)
        engine.dispose()
        connect = partial(sqlite3.connect, path, timeout=0.0, isolation_level=None)

        async def open_connection() -> _InlineConnection:
            return await _InlineConnection(connect, iter_chunk_size=64)

        self._engine = create_async_engine(
            f"sqlite+aiosqlite:///{path}", async_creator=open_connection, poolclass=NullPool
        )
        event.listen(self._engine.sync_engine, "connect", _for_speed)
        event.listen(self._engine.sync_engine, "begin", lambda one: one.exec_driver_sql("BEGIN IMMEDIATE"))
        self._looking = connect()
        _for_speed(self._looking, None)

    def begin(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection in a transaction, which is rolled back unless it is committed."""
        return self._engine.begin()

    def clear(self) -> None:
        """Empty all tables."""
        for table in METADATA.sorted_tables:
            self._looking.execute(f"DELETE FROM {table.name}")

    def orders(self) -> list[Row]:
        """What is committed."""
        return [Row(*row) for row in self._looking.execute("SELECT order_id, body, transaction_id FROM orders")]

    def outcomes(self) -> dict[str, str]:
        """The transaction table: outcome by transaction id."""
        return dict(self._looking.execute(f"SELECT transaction_id, outcome FROM {TRANSACTIONS.table.name}"))

    def close(self) -> None:
        self._looking.close()


def _for_speed(connection: Any, _record: object) -> None:
    """No power cut hits this file; kills are transactions that are not committed."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=OFF")
    cursor.execute("PRAGMA journal_mode=MEMORY")
    cursor.close()

"""aiosqlite with fewer hand-overs to its thread: 3 for placing an order instead of 31.

aiosqlite hands creating a cursor, executing, fetching and closing to the connection's thread one by one, and each
hand-over costs more than a statement by primary key itself. Here a statement is one hand-over; and inside a writing
transaction it is none: whoever holds the write lock waits for nobody until COMMIT, which writes, syncs and checkpoints,
and which goes to the thread as BEGIN IMMEDIATE does. So nothing that may wait runs on the event loop.

Invariant: loop and thread never use the connection at the same time. The loop uses it only while `holds_write_lock`,
which is set after the thread has answered BEGIN IMMEDIATE, and taken away before COMMIT and ROLLBACK are handed over.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import aiosqlite

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

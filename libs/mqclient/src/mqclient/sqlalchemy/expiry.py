"""Deleting what is older than a time, some rows at a time.

Invariant: one call deletes `rows_max` rows at most, the oldest first, by an index on the time: so no transaction holds
its locks for long, however many rows have come of age.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Delete, Table, bindparam, delete, select, tuple_

from mqclient.sqlalchemy.connection import Connection, SyncConnection, connection_of, sync_connection_of

ROWS_MAX = 500  # about a millisecond of SQLite's time


class Expiry:
    """The rows of `table` by `created`, its column of milliseconds since 1970; wants an index on it."""

    def __init__(self, table: Table, created: Column[int]) -> None:
        key = list(table.primary_key.columns)
        oldest = select(*key).where(created < bindparam("older_than_ms")).order_by(created).limit(bindparam("rows_max"))
        # Not by a list of keys that were read before: what another process deletes meanwhile is no error.
        self._delete: Delete = delete(table).where(tuple_(*key).in_(oldest))

    async def purge(self, connection: Connection, older_than_ms: int, rows_max: int) -> int:
        """Delete rows from before `older_than_ms`; returns how many: `rows_max`, or fewer when none is left.

        The caller commits.
        """
        parameters = _parameters(older_than_ms, rows_max)
        return (await (await connection_of(connection)).execute(self._delete, parameters)).rowcount

    def purge_sync(self, connection: SyncConnection, older_than_ms: int, rows_max: int) -> int:
        """The same on a plain connection."""
        return sync_connection_of(connection).execute(self._delete, _parameters(older_than_ms, rows_max)).rowcount


def _parameters(older_than_ms: int, rows_max: int) -> dict[str, Any]:
    return {"older_than_ms": older_than_ms, "rows_max": rows_max}

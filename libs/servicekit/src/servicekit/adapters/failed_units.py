"""What failed is rolled back, and is not committed: on either database, and whoever has caught the error.

- A unit in which a statement has failed is not committed. PostgreSQL answers COMMIT in such a transaction with a
  rollback, and calls that no error: whoever had caught the error of the statement would believe that everything was
  kept. SQLite would keep the rest. What failed inside a savepoint that was rolled back is forgotten with it.
- A commit that fails is rolled back. SQLite leaves the transaction open when a commit fails, and SQLAlchemy believes
  that it is over: the connection would go back to the pool with the write lock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection


class FailedUnitError(RuntimeError):
    """A mistake in the code: the error of a statement was caught, and then the unit was committed."""


class FailedUnits:
    """The connections of an engine on which something has failed that was not rolled back."""

    def __init__(self, engine: Engine) -> None:
        """From now on a commit on one of them raises FailedUnitError."""
        self._failed: WeakSet[Connection] = WeakSet()
        event.listen(engine, "handle_error", self._note)
        event.listen(engine, "commit", self._refuse)
        for name in ("begin", "rollback", "rollback_savepoint"):
            event.listen(engine, name, self._forget)

    @asynccontextmanager
    async def transaction(self, connection: AsyncConnection) -> AsyncIterator[None]:
        """A transaction; behind it nothing is open of one that could not be committed."""
        await connection.begin()
        try:
            yield
        finally:
            is_over_for_sqlalchemy = not connection.in_transaction() and not connection.invalidated
            if is_over_for_sqlalchemy and connection.sync_connection in self._failed:
                await connection.run_sync(_roll_back_driver)

    def _note(self, context: ExceptionContext) -> None:
        if context.connection is not None:
            self._failed.add(context.connection)

    def _forget(self, connection: Connection, *_: Any) -> None:
        self._failed.discard(connection)

    def _refuse(self, connection: Connection) -> None:
        if connection in self._failed:
            raise FailedUnitError("a statement of this unit has failed before; it can only be rolled back")


def _roll_back_driver(connection: Connection) -> None:
    connection.connection.rollback()

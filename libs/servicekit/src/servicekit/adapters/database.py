"""The database of a service, by its URL: a file of SQLite's, or PostgreSQL.

    async with database.writing() as connection:
        ... and await connection.commit()

Both keep the same promises, and differ in who waits for whom. On SQLite one unit writes at a time, and what it has read
cannot change before it writes. On PostgreSQL any number write: what a unit has read may have changed, unless it has
locked it; so the rows decide, by compare-and-set and their constraints.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from servicekit.adapters.postgresql_database import PostgresqlDatabase
from servicekit.adapters.sqlite_database import SqliteDatabase
from servicekit.adapters.storage_errors import unavailable
from servicekit.config import DATABASE_POOL_SIZE, POSTGRESQL_PREFIX
from servicekit.errors import StorageUnavailableError
from servicekit.health import OK

_HEALTH_QUERY = text("SELECT version_num FROM alembic_version")


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    return make_url(url).render_as_string(hide_password=True)


class DatabaseBackend(Protocol):
    """What a kind of database has to offer. Invariant: as `Database`'s."""

    def looking(self) -> AbstractAsyncContextManager[AsyncConnection]: ...

    def reading(self) -> AbstractAsyncContextManager[AsyncConnection]: ...

    def writing(self) -> AbstractAsyncContextManager[AsyncConnection]: ...

    def migrating(self) -> AbstractAsyncContextManager[AsyncConnection]: ...

    async def dispose(self) -> None: ...


class Database:
    """Connections for reading and for writing.

    Invariants: a connection that is given back is rolled back, whatever was not committed and however its user ended; a
    unit in which a statement has failed cannot be committed (FailedUnitError).
    """

    def __init__(self, url: str, pool_size: int = DATABASE_POOL_SIZE) -> None:
        """`pool_size` connections at once, at most; of PostgreSQL only."""
        self._backend: DatabaseBackend
        if url.startswith(POSTGRESQL_PREFIX):
            self._backend = PostgresqlDatabase(url, pool_size)
        else:
            self._backend = SqliteDatabase(url)

    def looking(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection for statements that only read, of which each may see another state of the database.

        On PostgreSQL it costs two round trips less than `reading`: for what is decided again by who writes. Raises
        StorageUnavailableError.
        """
        return self._backend.looking()

    def reading(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection in a transaction that is rolled back at the end. Raises StorageUnavailableError."""
        return self._backend.reading()

    def writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection in a transaction that is rolled back unless it was committed. Raises StorageUnavailableError.

        An IntegrityError ends the unit: its user lets an error out of it, and nothing of it is kept.
        """
        return self._backend.writing()

    def migrating(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """As `writing`, without limits of time, and one at a time over all processes."""
        return self._backend.migrating()

    async def health(self) -> str:
        """ "ok" if the database answers and was migrated, or what is wrong."""
        try:
            async with self.reading() as connection:
                await connection.execute(_HEALTH_QUERY)
        except StorageUnavailableError as error:
            return str(error)
        except DBAPIError as error:  # PostgreSQL answers, and has no such table
            return str(unavailable(error))
        return OK

    async def dispose(self) -> None:
        """Close every connection."""
        await self._backend.dispose()

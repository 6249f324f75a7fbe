"""The application's own connection, or a session that has one; of SQLAlchemy's asyncio classes or of the plain ones."""

from __future__ import annotations

from typing import TypeAlias

import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

Connection: TypeAlias = AsyncConnection | AsyncSession
SyncConnection: TypeAlias = sqlalchemy.Connection | Session


async def connection_of(connection: Connection) -> AsyncConnection:
    """A session's own connection: its pending objects are not flushed by a look at these tables."""
    return await connection.connection() if isinstance(connection, AsyncSession) else connection


def sync_connection_of(connection: SyncConnection) -> sqlalchemy.Connection:
    """The same of a plain session."""
    return connection.connection() if isinstance(connection, Session) else connection

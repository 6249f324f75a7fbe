"""The application's own connection: an AsyncConnection, or an AsyncSession that has one."""

from __future__ import annotations

from typing import TypeAlias

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

Connection: TypeAlias = AsyncConnection | AsyncSession


async def connection_of(connection: Connection) -> AsyncConnection:
    """A session's own connection: its pending objects are not flushed by a look at these tables."""
    return await connection.connection() if isinstance(connection, AsyncSession) else connection

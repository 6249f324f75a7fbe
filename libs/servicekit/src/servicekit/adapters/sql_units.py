"""Units of work over a database: each is one connection, and the repositories of a service over it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from servicekit.adapters.database import Database

UnitT = TypeVar("UnitT")


class SqlUnits(Generic[UnitT]):
    """Implements a service's `Units`; `new_unit` is its unit of work over a connection."""

    def __init__(self, database: Database, new_unit: Callable[[AsyncConnection], UnitT]) -> None:
        self._database = database
        self._new_unit = new_unit

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[UnitT]:
        async with self._database.looking() as connection:
            yield self._new_unit(connection)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[UnitT]:
        async with self._database.reading() as connection:
            yield self._new_unit(connection)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[UnitT]:
        async with self._database.writing() as connection:
            yield self._new_unit(connection)

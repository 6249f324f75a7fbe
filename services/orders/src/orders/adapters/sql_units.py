"""Units of work over a database connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection

from orders.adapters.database import Database
from orders.adapters.sql_idempotency_keys import SqlIdempotencyKeys
from orders.adapters.sql_orders import SqlOrders
from orders.adapters.sql_outbox import SqlOutbox
from orders.adapters.sql_products import SqlProducts


class SqlUnitOfWork:
    """Implements `UnitOfWork`."""

    def __init__(self, connection: AsyncConnection, on_outbox_commit: Callable[[], None]) -> None:
        self._connection = connection
        self._on_outbox_commit = on_outbox_commit
        self.products = SqlProducts(connection)
        self.orders = SqlOrders(connection)
        self.keys = SqlIdempotencyKeys(connection)
        self.outbox = SqlOutbox(connection)

    async def commit(self) -> None:
        await self._connection.commit()
        if self.outbox.has_additions:
            self._on_outbox_commit()


class SqlUnits:
    """Implements `Units`; `on_outbox_commit` is called after each commit that left messages in the outbox."""

    def __init__(self, database: Database, on_outbox_commit: Callable[[], None]) -> None:
        self._database = database
        self._on_outbox_commit = on_outbox_commit

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[SqlUnitOfWork]:
        async with self._database.reading() as connection:
            yield SqlUnitOfWork(connection, self._on_outbox_commit)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[SqlUnitOfWork]:
        async with self._database.writing() as connection:
            yield SqlUnitOfWork(connection, self._on_outbox_commit)

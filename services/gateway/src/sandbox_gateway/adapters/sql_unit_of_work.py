"""A unit of work over a database connection."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from sandbox_gateway.adapters.sql_charges import SUM_CAPTURED, SqlCharges
from sandbox_gateway.adapters.sql_refunds import SUM_REFUNDED, SqlRefunds
from sandbox_gateway.adapters.sql_webhooks import SqlWebhooks
from sandbox_gateway.service.unit_of_work import Book


class SqlUnitOfWork:
    """Implements `UnitOfWork`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.charges = SqlCharges(connection)
        self.refunds = SqlRefunds(connection)
        self.webhooks = SqlWebhooks(connection)

    async def book(self) -> Book:
        captured_minor, captures = (await self._connection.execute(SUM_CAPTURED)).one()
        refunded_minor, refunds = (await self._connection.execute(SUM_REFUNDED)).one()
        return Book(int(captured_minor), int(refunded_minor), captures, refunds)

    async def commit(self) -> None:
        await self._connection.commit()

"""A unit of work over a database connection."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from orders.adapters.sql_orders import SqlOrders
from orders.adapters.sql_products import SqlProducts
from orders.adapters.sql_refunds import SqlRefunds
from orders.adapters.tables import idempotency_keys, inbox, transactions
from servicekit.adapters.sql_inbox import SqlInbox
from servicekit.adapters.sql_transactions import SqlTransactionRows


class SqlUnitOfWork:
    """Implements `UnitOfWork`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.products = SqlProducts(connection)
        self.orders = SqlOrders(connection)
        self.refunds = SqlRefunds(connection)
        self.keys = idempotency_keys.of(connection)
        self.transactions = SqlTransactionRows(transactions, connection)
        self.inbox = SqlInbox(inbox, connection)

    async def commit(self) -> None:
        await self._connection.commit()

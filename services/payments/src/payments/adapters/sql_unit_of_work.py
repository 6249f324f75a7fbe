"""A unit of work over a database connection."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from payments.adapters.sql_gateway_events import SqlGatewayEvents, SqlPayableOrders
from payments.adapters.sql_payments import SqlLedger, SqlPayments, SqlRefunds
from payments.adapters.tables import idempotency_keys, inbox, outbox, transactions
from servicekit.sql.tables import SqlInbox, SqlTransactionRows


class SqlUnitOfWork:
    """Implements `UnitOfWork`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.payments = SqlPayments(connection)
        self.refunds = SqlRefunds(connection)
        self.ledger = SqlLedger(connection)
        self.gateway_events = SqlGatewayEvents(connection)
        self.payable_orders = SqlPayableOrders(connection)
        self.keys = idempotency_keys.of(connection)
        self.transactions = SqlTransactionRows(transactions, connection)
        self.inbox = SqlInbox(inbox, connection)
        self.outbox = outbox.of(connection)

    async def commit(self) -> None:
        await self._connection.commit()

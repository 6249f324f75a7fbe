"""Bank A: the debit and the message are one, whatever dies in between.

Invariants: the account is debited and the transfer recorded in one database transaction, together with the row that
answers the queue's check; a transfer id debits once; no account is overdrawn.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, MetaData, String, Table, insert, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from bank_transfer.order import TransferOrder
from mqclient import ClientConfig, TransactionProducer
from mqclient.sqlalchemy import SqlTransactionListener, TransactionTable
from osenv import Clock

GROUP = "bank-a"

metadata = MetaData()
accounts = Table(
    "accounts",
    metadata,
    Column("account_id", String(64), primary_key=True),
    Column("balance_minor", BigInteger, nullable=False),
    CheckConstraint("balance_minor >= 0", name="ck_accounts_balance_minor"),
)
debits = Table(
    "debits",
    metadata,
    Column("transfer_id", String(64), primary_key=True),
    Column("account_id", String(64), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
)
transactions = TransactionTable(metadata)


class TransferRejectedError(Exception):
    """Nothing was debited, and bank B hears nothing."""


class SendingBank:
    """Debits. Enter it as a context: it takes part in the queue's checks then."""

    def __init__(self, engine: AsyncEngine, url: str, clock: Clock, client_config: ClientConfig | None = None) -> None:
        self.producer = TransactionProducer(
            GROUP,
            url,
            client_config=client_config,
            transaction_listener=SqlTransactionListener(transactions, engine.begin, clock),
        )

    async def transfer(self, order: TransferOrder) -> None:
        """Debit, and tell bank B to credit.

        Raises TransferRejectedError, and what the queue raises when it cannot be reached before anything has happened.
        """

        async def debit(connection: AsyncConnection, _transaction_id: str) -> None:
            await self._debit(connection, order)

        await self.producer.send_message_in_transaction(order.message(), debit)

    async def _debit(self, connection: AsyncConnection, order: TransferOrder) -> None:
        row = {
            "transfer_id": order.transfer_id,
            "account_id": order.from_account,
            "amount_minor": order.amount_minor,
        }
        try:
            await connection.execute(insert(debits), row)
        except IntegrityError as error:
            raise TransferRejectedError(f"{order.transfer_id} has been debited before") from error
        has_enough = (accounts.c.account_id == order.from_account) & (accounts.c.balance_minor >= order.amount_minor)
        debited = await connection.execute(
            update(accounts).where(has_enough).values(balance_minor=accounts.c.balance_minor - order.amount_minor)
        )
        if debited.rowcount != 1:
            raise TransferRejectedError(f"{order.from_account} has no {order.amount_minor} to give")

    async def __aenter__(self) -> SendingBank:
        await self.producer.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.producer.shutdown()

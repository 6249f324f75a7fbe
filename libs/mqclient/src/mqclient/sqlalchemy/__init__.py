"""The queue and the application's own database transactions, both ways, with SQLAlchemy.

Sending: a message goes out if and only if the transaction commits, whatever dies in between.

    from sqlalchemy import Column, MetaData, String, Table
    from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

    from mqclient import Message, TransactionProducer, TransactionSendResult
    from mqclient.sqlalchemy import SqlTransactionListener, TransactionTable
    from osenv import RealClock

    engine, metadata = create_async_engine("sqlite+aiosqlite:///shop.db"), MetaData()
    orders = Table("orders", metadata, Column("id", String, primary_key=True))
    listener = SqlTransactionListener(TransactionTable(metadata), engine.begin, RealClock())

    async def insert_order(connection: AsyncConnection, transaction_id: str) -> None:
        await connection.execute(orders.insert().values(id="order-17"))

    async def place_order(url: str) -> TransactionSendResult:
        async with engine.begin() as connection:  # in an application: a migration
            await connection.run_sync(metadata.create_all)
        async with TransactionProducer("shop", url, transaction_listener=listener) as producer:
            return await producer.send_message_in_transaction(Message("orders", b"order-17"), insert_order)

Each call is an attempt with a transaction id of its own, and the table's row has that id. When the process dies, the
broker asks any member of the group: the row says that the transaction was committed. Where there is none, a tombstone
with the same id is written before the message is rolled back: this attempt cannot commit any more, and a new call can.

Consuming: a message that comes again changes nothing, whatever made it come again.

    inbox = InboxTable(metadata)

    async def debit(messages: list[MessageExt]) -> ConsumeStatus:
        for message in messages:
            async with engine.begin() as connection:
                if await inbox.once(connection, "accounts", message.keys[0], clock.wall_ms()):
                    await connection.execute(update(accounts).values(balance=accounts.c.balance - 100))
        return ConsumeStatus.CONSUME_SUCCESS

With mqclient.sync the same tables take plain connections and sessions: SyncSqlTransactionListener, `once_sync`,
`record_sync`, `answer_check_sync`, `purge_sync`.

A TableCleaner deletes what is old. Needs SQLAlchemy: `hourglass-mqclient[sqlalchemy]`.
"""

from mqclient.sqlalchemy.inbox import (
    BUSINESS_KEY_LENGTH_MAX,
    Connection,
    Expiry,
    InboxTable,
    Purgeable,
    Retention,
    SyncConnection,
    TableCleaner,
)
from mqclient.sqlalchemy.transactions import (
    COMMITTED,
    TOMBSTONE,
    TRANSACTION_ID_LENGTH_MAX,
    LocalTransaction,
    SqlTransactionListener,
    SyncLocalTransaction,
    SyncSqlTransactionListener,
    TransactionTable,
)

__all__ = [
    "BUSINESS_KEY_LENGTH_MAX",
    "COMMITTED",
    "TOMBSTONE",
    "TRANSACTION_ID_LENGTH_MAX",
    "Connection",
    "Expiry",
    "InboxTable",
    "LocalTransaction",
    "Purgeable",
    "Retention",
    "SqlTransactionListener",
    "SyncConnection",
    "SyncLocalTransaction",
    "SyncSqlTransactionListener",
    "TableCleaner",
    "TransactionTable",
]

"""The transaction table: local transactions whose outcome can be looked up (MISSION T14; RELIABILITY.md, part (d)).

    metadata = MetaData()
    orders = Table("orders", metadata, Column("id", String, primary_key=True))
    transactions = TransactionTable(metadata)

    async def place_order(connection: AsyncConnection, transaction_id: str) -> None:
        await connection.execute(orders.insert().values(id="order-17"))

    listener = SqlTransactionListener(transactions, engine.begin, RealClock())
    async with TransactionProducer("shop", url, transaction_listener=listener) as producer:
        await producer.send_message_in_transaction(Message("orders", b"order-17", tag="created"), place_order)

The row of an attempt is written in the database transaction of the business rows. A check-back that finds the row
commits the message. One that finds none writes a tombstone under the same key before it rolls the message back, so that
a local transaction that comes later fails on the key. Needs SQLAlchemy: `hourglass-mqclient[sqlalchemy]`.

Invariants: a transaction id has at most one row, for ever COMMITTED or for ever TOMBSTONE; ROLLBACK_MESSAGE is answered
only after the tombstone is committed; whatever the database cannot tell for certain is UNKNOW.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, MetaData, String, Table, delete, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from mqclient.errors import TransactionTombstonedError
from mqclient.message import Message
from mqclient.message_ext import MessageExt
from mqclient.producer.transaction_listener import LocalTransactionRolledBackError, LocalTransactionState
from osenv import Clock

logger = logging.getLogger("mqclient.sqlalchemy")

COMMITTED = "COMMITTED"
TOMBSTONE = "TOMBSTONE"
TRANSACTION_ID_LENGTH_MAX = 64  # the client's own take 32

Connection: TypeAlias = AsyncConnection | AsyncSession
# The business part of a local transaction: gets the connection and the transaction id, and commits nothing.
LocalTransaction: TypeAlias = Callable[..., Awaitable[object]]

_STATE_OF_OUTCOME = {
    COMMITTED: LocalTransactionState.COMMIT_MESSAGE,
    TOMBSTONE: LocalTransactionState.ROLLBACK_MESSAGE,
}


class TransactionTable:
    """The table `name`, added to `metadata`; its rows are keyed by the attempt's transaction id.

    Works on any database with primary keys and savepoints. Check-backs wait for a local transaction that is writing its
    row, as long as the database lets them: set a lock timeout (PostgreSQL) or a busy timeout (SQLite).
    """

    def __init__(self, metadata: MetaData, name: str = "mq_transaction") -> None:
        self.table = Table(
            name,
            metadata,
            Column("transaction_id", String(TRANSACTION_ID_LENGTH_MAX), primary_key=True),
            Column("outcome", String(9), nullable=False),
            Column("created_at_ms", BigInteger, nullable=False),
            CheckConstraint(f"outcome IN ('{COMMITTED}', '{TOMBSTONE}')", name=f"ck_{name}_outcome"),
            Index(f"ix_{name}_created_at_ms", "created_at_ms"),
        )

    async def record(self, connection: Connection, transaction_id: str, now_ms: int) -> None:
        """Write the row in the transaction of the business rows, best before them; the caller commits.

        Raises TransactionTombstonedError when a check-back has rolled this attempt back already. The caller has to roll
        back then: the database may not take anything else in this transaction.
        """
        try:
            await self._insert(await _connection_of(connection), transaction_id, COMMITTED, now_ms)
        except IntegrityError as error:
            raise TransactionTombstonedError(
                f"transaction {transaction_id} has ended already: a check-back was faster than the local transaction"
            ) from error

    async def answer_check(self, connection: Connection, transaction_id: str, now_ms: int) -> LocalTransactionState:
        """What a check-back is to be told. Commits; the connection must have no other work in its transaction.

        UNKNOW when the database cannot tell now (a lock timeout, a lost connection); the connection's owner rolls back.
        """
        try:
            state = await self._find_or_bury(await _connection_of(connection), transaction_id, now_ms)
            await connection.commit()
        except DBAPIError as error:
            logger.warning("transaction %s cannot be looked up now: %s", transaction_id, error)
            return LocalTransactionState.UNKNOW
        return state

    async def purge(self, connection: Connection, older_than_ms: int) -> int:
        """Delete the rows that were created before `older_than_ms` (since 1970) and return their number.

        The caller commits. A row must outlive its half message: a broker that comes back after a week asks after a
        week, and without the row it would be told to roll back.
        """
        rows = await (await _connection_of(connection)).execute(
            delete(self.table).where(self.table.c.created_at_ms < older_than_ms)
        )
        return rows.rowcount

    async def _find_or_bury(self, connection: AsyncConnection, id_: str, now_ms: int) -> LocalTransactionState:
        state = await self._find(connection, id_)
        if state is not LocalTransactionState.UNKNOW:
            return state
        try:
            async with connection.begin_nested():
                await self._insert(connection, id_, TOMBSTONE, now_ms)
        except IntegrityError:  # the local transaction, or another check, was there between our look and our write
            return await self._find(connection, id_)
        return LocalTransactionState.ROLLBACK_MESSAGE

    async def _find(self, connection: AsyncConnection, id_: str) -> LocalTransactionState:
        outcome = await connection.scalar(select(self.table.c.outcome).where(self.table.c.transaction_id == id_))
        return LocalTransactionState.UNKNOW if outcome is None else _STATE_OF_OUTCOME[outcome]

    async def _insert(self, connection: AsyncConnection, id_: str, outcome: str, now_ms: int) -> None:
        await connection.execute(insert(self.table).values(transaction_id=id_, outcome=outcome, created_at_ms=now_ms))


class SqlTransactionListener:
    """A TransactionListener for the common case: one database transaction, given by the sender as `arg`.

    `begin` opens a connection or session with a transaction, and rolls back what is not committed when it closes:
    `engine.begin`, or an `async_sessionmaker`.
    """

    def __init__(
        self, table: TransactionTable, begin: Callable[[], AbstractAsyncContextManager[Connection]], clock: Clock
    ) -> None:
        self._table = table
        self._begin = begin
        self._clock = clock

    async def execute_local_transaction(
        self, message: Message, transaction_id: str, arg: LocalTransaction
    ) -> LocalTransactionState:
        """Run `arg(connection, transaction_id)` and commit it with the row of this attempt.

        An exception from before the commit rolls everything back and goes to the sender; one from the commit itself
        leaves it to a check to find out.
        """
        del message
        committing = False
        try:
            async with self._begin() as connection:
                await self._table.record(connection, transaction_id, self._clock.wall_ms())
                await arg(connection, transaction_id)
                if isinstance(connection, AsyncSession):
                    await connection.flush()  # what the database refuses here is not yet the commit
                committing = True
                await connection.commit()
        except Exception as error:
            if committing:
                raise
            raise LocalTransactionRolledBackError(error) from error
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Look the attempt up, and bury it if it is not there."""
        async with self._begin() as connection:
            return await self._table.answer_check(connection, message.transaction_id, self._clock.wall_ms())


async def _connection_of(connection: Connection) -> AsyncConnection:
    """A session's own connection: its pending objects are not flushed by a look at this table."""
    return await connection.connection() if isinstance(connection, AsyncSession) else connection

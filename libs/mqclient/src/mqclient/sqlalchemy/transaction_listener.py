"""A TransactionListener over the transaction table (MISSION T14)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TypeAlias

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from mqclient.errors import CheckUnansweredError, LocalTransactionRolledBackError
from mqclient.message import LocalTransactionState, Message, MessageExt
from mqclient.sqlalchemy.connection import Connection, SyncConnection
from mqclient.sqlalchemy.transaction_table import TransactionTable
from osenv import Clock

# What connecting raises: the driver's errors, as SQLAlchemy wraps them or not, and a pool without a free connection.
AWAY = (DBAPIError, PoolTimeoutError, OSError)

# The business part of a local transaction: gets the connection and the transaction id, and commits nothing.
LocalTransaction: TypeAlias = Callable[..., Awaitable[object]]
SyncLocalTransaction: TypeAlias = Callable[..., object]


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
        """Look the attempt up, and bury it if it is not there.

        Raises CheckUnansweredError while the database is away.
        """
        try:
            async with self._begin() as connection:
                return await self._table.answer_check(connection, message.transaction_id, self._clock.wall_ms())
        except AWAY as error:
            raise CheckUnansweredError(str(error)) from error


class SyncSqlTransactionListener:
    """The same for mqclient.sync: `begin` is `engine.begin` of a plain engine, or a `sessionmaker`.

    The local transaction runs in the thread that sends, a check in a thread of its own.
    """

    def __init__(
        self, table: TransactionTable, begin: Callable[[], AbstractContextManager[SyncConnection]], clock: Clock
    ) -> None:
        self._table = table
        self._begin = begin
        self._clock = clock

    def execute_local_transaction(
        self, message: Message, transaction_id: str, arg: SyncLocalTransaction
    ) -> LocalTransactionState:
        """As SqlTransactionListener.execute_local_transaction."""
        del message
        committing = False
        try:
            with self._begin() as connection:
                self._table.record_sync(connection, transaction_id, self._clock.wall_ms())
                arg(connection, transaction_id)
                if isinstance(connection, Session):
                    connection.flush()  # what the database refuses here is not yet the commit
                committing = True
                connection.commit()
        except Exception as error:
            if committing:
                raise
            raise LocalTransactionRolledBackError(error) from error
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """As SqlTransactionListener.check_local_transaction."""
        try:
            with self._begin() as connection:
                return self._table.answer_check_sync(connection, message.transaction_id, self._clock.wall_ms())
        except AWAY as error:
            raise CheckUnansweredError(str(error)) from error

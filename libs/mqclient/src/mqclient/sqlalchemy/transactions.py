"""The transaction table with the outcomes of local transactions, and a TransactionListener that answers checks by it.

The row of an attempt is written in the database transaction of the business rows. A check that finds the row commits
the message. One that finds none writes a tombstone under the same key before it rolls the message back, so that a local
transaction that comes later fails on the key.

Invariants: a transaction id has at most one row, for ever COMMITTED or for ever TOMBSTONE; ROLLBACK_MESSAGE is answered
only after the tombstone is committed; a check that cannot reach the database has no answer; whatever else the database
cannot tell for certain is UNKNOW.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeAlias

import sqlalchemy
from sqlalchemy import BigInteger, CheckConstraint, Column, Index, MetaData, String, Table, bindparam, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from mqclient.errors import CheckUnansweredError, LocalTransactionRolledBackError, TransactionTombstonedError
from mqclient.message import LocalTransactionState, Message, MessageExt
from mqclient.sqlalchemy.inbox import ROWS_MAX, Connection, Expiry, SyncConnection, connection_of, sync_connection_of
from osenv import Clock

COMMITTED = "COMMITTED"
TOMBSTONE = "TOMBSTONE"
TRANSACTION_ID_LENGTH_MAX = 64  # the client's own take 32

_STATE_OF_OUTCOME = {
    COMMITTED: LocalTransactionState.COMMIT_MESSAGE,
    TOMBSTONE: LocalTransactionState.ROLLBACK_MESSAGE,
}

# What connecting raises: the driver's errors, as SQLAlchemy wraps them or not, and a pool without a free connection.
AWAY = (DBAPIError, PoolTimeoutError, OSError)

# The business part of a local transaction: gets the connection and the transaction id, and commits nothing.
LocalTransaction: TypeAlias = Callable[..., Awaitable[object]]
SyncLocalTransaction: TypeAlias = Callable[..., object]


class TransactionTable:
    """The table `name`, added to `metadata`; its rows are keyed by the attempt's transaction id.

    The documentation of mqclient.sqlalchemy shows it at work in ten lines.

    Works on any database with primary keys and savepoints. Checks wait for a local transaction that is writing its row,
    as long as the database lets them: set a lock timeout (PostgreSQL) or a busy timeout (SQLite).
    """

    def __init__(self, metadata: MetaData, name: str = "mq_transaction") -> None:
        created = Column("created_at_ms", BigInteger, nullable=False)
        self.table = Table(
            name,
            metadata,
            Column("transaction_id", String(TRANSACTION_ID_LENGTH_MAX), primary_key=True),
            Column("outcome", String(9), nullable=False),
            created,
            CheckConstraint(f"outcome IN ('{COMMITTED}', '{TOMBSTONE}')", name=f"ck_{name}_outcome"),
            Index(f"ix_{name}_created_at_ms", "created_at_ms"),
        )
        self._expiry = Expiry(self.table, created)
        # Built once: building a statement takes SQLAlchemy longer than a database takes to execute it.
        columns = self.table.c
        self._insert_row = insert(self.table)
        self._select_outcome = select(columns.outcome).where(columns.transaction_id == bindparam("wanted_id"))

    async def record(self, connection: Connection, transaction_id: str, now_ms: int) -> None:
        """Write the row in the transaction of the business rows, best before them; the caller commits.

        Raises TransactionTombstonedError when a check has rolled this attempt back already. The caller has to roll back
        then: the database may not take anything else in this transaction.
        """
        try:
            await self._insert(await connection_of(connection), transaction_id, COMMITTED, now_ms)
        except IntegrityError as error:
            raise _tombstoned(transaction_id) from error

    def record_sync(self, connection: SyncConnection, transaction_id: str, now_ms: int) -> None:
        """As `record`, on a plain connection or session."""
        try:
            sync_connection_of(connection).execute(self._insert_row, _row(transaction_id, COMMITTED, now_ms))
        except IntegrityError as error:
            raise _tombstoned(transaction_id) from error

    async def answer_check(self, connection: Connection, transaction_id: str, now_ms: int) -> LocalTransactionState:
        """The answer to a check. Commits; the connection must have no other work in its transaction.

        Raises CheckUnansweredError when the database cannot tell now (a lock timeout, a lost connection); the
        connection's owner rolls back.
        """
        try:
            state = await self._find_or_bury(await connection_of(connection), transaction_id, now_ms)
            await connection.commit()
        except DBAPIError as error:
            raise CheckUnansweredError(str(error)) from error
        return state

    def answer_check_sync(self, connection: SyncConnection, transaction_id: str, now_ms: int) -> LocalTransactionState:
        """As `answer_check`, on a plain connection or session."""
        try:
            state = self._find_or_bury_sync(sync_connection_of(connection), transaction_id, now_ms)
            connection.commit()
        except DBAPIError as error:
            raise CheckUnansweredError(str(error)) from error
        return state

    async def purge(self, connection: Connection, older_than_ms: int, rows_max: int = ROWS_MAX) -> int:
        """Delete rows that were created before `older_than_ms` (since 1970), `rows_max` at most; returns their number.

        The caller commits. A row must outlive its half message: a broker that comes back after a week asks after a
        week, and without the row it would be told to roll back. `Retention` says for how long that is.
        """
        return await self._expiry.purge(connection, older_than_ms, rows_max)

    def purge_sync(self, connection: SyncConnection, older_than_ms: int, rows_max: int = ROWS_MAX) -> int:
        """As `purge`, on a plain connection or session."""
        return self._expiry.purge_sync(connection, older_than_ms, rows_max)

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
        return _state_of(await connection.scalar(self._select_outcome, {"wanted_id": id_}))

    async def _insert(self, connection: AsyncConnection, id_: str, outcome: str, now_ms: int) -> None:
        await connection.execute(self._insert_row, _row(id_, outcome, now_ms))

    def _find_or_bury_sync(self, connection: sqlalchemy.Connection, id_: str, now_ms: int) -> LocalTransactionState:
        state = self._find_sync(connection, id_)
        if state is not LocalTransactionState.UNKNOW:
            return state
        try:
            with connection.begin_nested():
                connection.execute(self._insert_row, _row(id_, TOMBSTONE, now_ms))
        except IntegrityError:  # as in _find_or_bury
            return self._find_sync(connection, id_)
        return LocalTransactionState.ROLLBACK_MESSAGE

    def _find_sync(self, connection: sqlalchemy.Connection, id_: str) -> LocalTransactionState:
        return _state_of(connection.scalar(self._select_outcome, {"wanted_id": id_}))


def _state_of(outcome: str | None) -> LocalTransactionState:
    return LocalTransactionState.UNKNOW if outcome is None else _STATE_OF_OUTCOME[outcome]


def _row(id_: str, outcome: str, now_ms: int) -> dict[str, Any]:
    return {"transaction_id": id_, "outcome": outcome, "created_at_ms": now_ms}


def _tombstoned(id_: str) -> TransactionTombstonedError:
    return TransactionTombstonedError(
        f"transaction {id_} has ended already: a check was faster than the local transaction"
    )


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
                    await connection.flush()  # what the database rejects here is not yet the commit
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
                    connection.flush()  # what the database rejects here is not yet the commit
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

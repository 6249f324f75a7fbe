"""The inbox: which business keys a consumer group has consumed; and the cleaner that keeps tables from growing.

Every message comes at least once, and nothing about the message itself tells that it has come before: an application
that sends again makes another message id with the same meaning. So the key is the business's own and names the act, not
the thing: `ORDERID_100` where an order leads to one act of the group, `ORDERID_100/paid` where it leads to several.

Invariants: a group and a key have at most one row; the row is part of the transaction of the business rows, so that a
crash leaves both or neither; of two members with one key at one moment exactly one is told True. A transaction of the
cleaner deletes `rows_max` rows at most, the oldest first, by an index on the time, and holds nothing else: so none
holds its locks for long, however many rows have come of age. A pass that fails is logged, and the next one comes all
the same. Any number of processes may clean the same tables.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import sqlalchemy
from sqlalchemy import BigInteger, Column, Delete, Index, MetaData, String, Table, bindparam, delete, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from mqclient.errors import IllegalArgumentError, IllegalGroupError
from mqclient.lifecycle import wait_event
from mqproto.names import GROUP_LENGTH_MAX, IllegalNameError, check_group
from osenv import Clock

logger = logging.getLogger("mqclient.sqlalchemy")

Connection: TypeAlias = AsyncConnection | AsyncSession
SyncConnection: TypeAlias = sqlalchemy.Connection | Session

ROWS_MAX = 500  # about a millisecond of SQLite's time

BUSINESS_KEY_LENGTH_MAX = 255

_INSERT_OF_DIALECT: Mapping[str, Callable[[Table], postgresql.Insert | sqlite.Insert]] = MappingProxyType(
    {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
)

INTERVAL_S = 600.0
DAY_MS = 86_400_000


async def connection_of(connection: Connection) -> AsyncConnection:
    """A session's own connection: its pending objects are not flushed by a look at these tables."""
    return await connection.connection() if isinstance(connection, AsyncSession) else connection


def sync_connection_of(connection: SyncConnection) -> sqlalchemy.Connection:
    """The same of a plain session."""
    return connection.connection() if isinstance(connection, Session) else connection


class Expiry:
    """The rows of `table` by `created`, its column of milliseconds since 1970; wants an index on it."""

    def __init__(self, table: Table, created: Column[int]) -> None:
        key = list(table.primary_key.columns)
        oldest = select(*key).where(created < bindparam("older_than_ms")).order_by(created).limit(bindparam("rows_max"))
        # Not by a list of keys that were read before: what another process deletes meanwhile is no error.
        self._delete: Delete = delete(table).where(tuple_(*key).in_(oldest))

    async def purge(self, connection: Connection, older_than_ms: int, rows_max: int) -> int:
        """Delete rows from before `older_than_ms`; returns how many: `rows_max`, or fewer when none is left.

        The caller commits.
        """
        parameters = _parameters(older_than_ms, rows_max)
        return (await (await connection_of(connection)).execute(self._delete, parameters)).rowcount

    def purge_sync(self, connection: SyncConnection, older_than_ms: int, rows_max: int) -> int:
        """The same on a plain connection."""
        return sync_connection_of(connection).execute(self._delete, _parameters(older_than_ms, rows_max)).rowcount


def _parameters(older_than_ms: int, rows_max: int) -> dict[str, Any]:
    return {"older_than_ms": older_than_ms, "rows_max": rows_max}


class InboxTable:
    """The table `name`, added to `metadata`, for any number of consumer groups. For PostgreSQL and SQLite.

    Two members with one key at one moment: the second insert waits for the first one's transaction. PostgreSQL lets it
    wait at the unique index and then inserts nothing, if the first has committed, or the row, if it has rolled back; in
    REPEATABLE READ and above it may raise a serialization error instead. SQLite lets it wait for the write lock. A wait
    that takes too long for the database raises as well. In each case the message comes again, and finds its key.

    There is no savepoint: on SQLite, with the driver's own transactions, releasing the first one commits, and the key
    would be consumed whatever becomes of the business rows.
    """

    def __init__(self, metadata: MetaData, name: str = "mq_inbox") -> None:
        consumed = Column("consumed_at_ms", BigInteger, nullable=False)
        self.table = Table(
            name,
            metadata,
            Column("consumer_group", String(GROUP_LENGTH_MAX), primary_key=True),
            Column("business_key", String(BUSINESS_KEY_LENGTH_MAX), primary_key=True),
            consumed,
            Index(f"ix_{name}_consumed_at_ms", "consumed_at_ms"),
        )
        self._expiry = Expiry(self.table, consumed)
        # Built once: building a statement takes SQLAlchemy longer than SQLite takes to execute it.
        self._insert_of_dialect = {
            dialect: insert(self.table).on_conflict_do_nothing().returning(self.table.c.business_key)
            for dialect, insert in _INSERT_OF_DIALECT.items()
        }

    async def once(self, connection: Connection, consumer_group: str, business_key: str, now_ms: int) -> bool:
        """Whether the group consumes this key for the first time; best asked before the business rows are written.

        True: the row is written in the caller's transaction, and consumed is what the caller commits with it. False:
        nothing is written, and there is nothing left to do but to acknowledge the message.

        `now_ms` is the time since 1970. Raises IllegalGroupError, and IllegalArgumentError for a key that is empty, too
        long or not printable, and for a database that this is not made for.
        """
        row = _checked_row(consumer_group, business_key, now_ms)
        own = await connection_of(connection)
        return (await own.execute(self._insert_for(own.dialect.name), row)).one_or_none() is not None

    def once_sync(self, connection: SyncConnection, consumer_group: str, business_key: str, now_ms: int) -> bool:
        """As `once`, on a plain connection or session."""
        row = _checked_row(consumer_group, business_key, now_ms)
        own = sync_connection_of(connection)
        return own.execute(self._insert_for(own.dialect.name), row).one_or_none() is not None

    async def purge(self, connection: Connection, older_than_ms: int, rows_max: int = ROWS_MAX) -> int:
        """Delete rows that were written before `older_than_ms` (since 1970), `rows_max` at most; returns their number.

        The caller commits. A row must outlive every redelivery of its message: what comes after is consumed again.
        """
        return await self._expiry.purge(connection, older_than_ms, rows_max)

    def purge_sync(self, connection: SyncConnection, older_than_ms: int, rows_max: int = ROWS_MAX) -> int:
        """As `purge`, on a plain connection or session."""
        return self._expiry.purge_sync(connection, older_than_ms, rows_max)

    def _insert_for(self, dialect: str) -> ReturningInsert[Any]:
        insert = self._insert_of_dialect.get(dialect)
        if insert is None:
            raise IllegalArgumentError(
                f"the inbox knows no insert without conflict for {dialect};"
                f" it works with {' and '.join(sorted(self._insert_of_dialect))}"
            )
        return insert


def _checked_row(consumer_group: str, business_key: str, now_ms: int) -> dict[str, Any]:
    try:
        check_group(consumer_group)
    except IllegalNameError as error:
        raise IllegalGroupError(str(error)) from error
    length = len(business_key)
    if not 1 <= length <= BUSINESS_KEY_LENGTH_MAX:
        raise IllegalArgumentError(
            f"the business key has {length} characters; allowed are 1 to {BUSINESS_KEY_LENGTH_MAX}"
        )
    if not business_key.isprintable():
        raise IllegalArgumentError(f"the business key {business_key!r} has characters that are not printable")
    return {"consumer_group": consumer_group, "business_key": business_key, "consumed_at_ms": now_ms}


class Purgeable(Protocol):
    """A table whose old rows can go: InboxTable, TransactionTable, or an Expiry over a table of the application's."""

    async def purge(self, connection: Connection, older_than_ms: int, rows_max: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the rows of a table are kept. Raises IllegalArgumentError for less than a day.

    The inbox: longer than a message can come again. It stays in the broker for `fileReservedTime` (72 h), its 16 tries
    take 4 h 46 min, a dead letter stays for 72 h again, and an operator who replays it makes a new message, which stays
    for 72 h: 14 days are enough.

    The transaction table: longer than a broker may be away and come back with its disk, because it asks about its open
    half messages however old they are, and a row that is gone means "roll back". RocketMQ's broker asks for 72 h only.
    """

    table: Purgeable
    keep_days: int

    def __post_init__(self) -> None:
        if self.keep_days < 1:
            raise IllegalArgumentError(f"rows are to be kept for {self.keep_days} days; at least 1 is allowed")


class TableCleaner:
    """Deletes what has come of age. `begin` opens a connection or session with a transaction, as SqlTransactionListener
    takes it."""

    def __init__(
        self,
        begin: Callable[[], AbstractAsyncContextManager[Connection]],
        clock: Clock,
        retentions: Iterable[Retention],
        *,
        interval_s: float = INTERVAL_S,
        rows_max: int = ROWS_MAX,
    ) -> None:
        self._begin = begin
        self._clock = clock
        self._retentions = tuple(retentions)
        self._interval_s = interval_s
        self._rows_max = rows_max
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Clean every `interval_s` until `stop`.

        The first time only after `interval_s`: a broker that waited for this process asks about its transactions
        before their rows can go.
        """
        while not await wait_event(self._clock, self._stopping, self._interval_s):
            try:
                await self.clean()
            except Exception:
                logger.exception("the tables could not be cleaned; it is tried again in %.0f s", self._interval_s)

    def stop(self) -> None:
        """Let `run` return after the transaction in hand."""
        self._stopping.set()

    async def clean(self) -> int:
        """One pass over all tables; returns how many rows were deleted. Raises what the database raises."""
        now_ms = self._clock.wall_ms()
        return sum([await self._purge(one.table, now_ms - one.keep_days * DAY_MS) for one in self._retentions])

    async def _purge(self, table: Purgeable, older_than_ms: int) -> int:
        deleted = 0
        while not self._stopping.is_set():
            async with self._begin() as connection:
                rows = await table.purge(connection, older_than_ms, self._rows_max)
                await connection.commit()
            deleted += rows
            if rows < self._rows_max:
                break
        return deleted

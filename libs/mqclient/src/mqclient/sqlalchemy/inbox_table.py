"""The inbox: which business keys a consumer group has consumed (MISSION I1, I2, C24).

Every message comes at least once, and nothing about the message itself tells that it has come before: an application
that sends again makes another message id with the same meaning. So the key is the business's own and names the act, not
the thing: `ORDERID_100` where an order leads to one act of the group, `ORDERID_100/paid` where it leads to several.

Invariants: a group and a key have at most one row; the row is part of the transaction of the business rows, so that a
crash leaves both or neither; of two members with one key at one moment exactly one is told True.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import BigInteger, Column, Index, MetaData, String, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from mqclient.errors import IllegalArgumentError, IllegalGroupError
from mqclient.sqlalchemy.connection import Connection, SyncConnection, connection_of, sync_connection_of
from mqclient.sqlalchemy.expiry import ROWS_MAX, Expiry
from mqproto.names import GROUP_LENGTH_MAX, IllegalNameError, check_group

BUSINESS_KEY_LENGTH_MAX = 255

_INSERT_OF_DIALECT: Mapping[str, Callable[[Table], postgresql.Insert | sqlite.Insert]] = MappingProxyType(
    {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
)


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

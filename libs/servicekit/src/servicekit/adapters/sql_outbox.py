"""The outbox in SQL. A row is taken away by `DELETE ... WHERE row_id = ...`, and its row count decides who told it."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from servicekit.adapters.schema import ROW_ID
from servicekit.message import OutgoingMessage
from servicekit.outbox import KeptMessage

NAME_LENGTH_MAX = 127  # of topics; tags are no longer
KEY_LENGTH_MAX = 255
TRACEPARENT_LENGTH = 55  # of version 00


class OutboxTable:
    """The table `outbox` of a service, and the repositories over it."""

    def __init__(self, metadata: MetaData) -> None:
        self.table = Table(
            "outbox",
            metadata,
            Column("row_id", ROW_ID, primary_key=True),
            Column("topic", String(NAME_LENGTH_MAX), nullable=False),
            Column("tag", String(NAME_LENGTH_MAX), nullable=False),
            Column("message_key", String(KEY_LENGTH_MAX), nullable=False),
            Column("body", LargeBinary, nullable=False),
            Column("created_at_ms", BigInteger, nullable=False),
            Column("traceparent", String(TRACEPARENT_LENGTH)),  # NULL: written outside a trace
        )
        # Built once: building a statement takes SQLAlchemy longer than SQLite takes to execute it.
        self.add = insert(self.table)
        self.oldest = select(self.table).order_by(self.table.c.row_id).limit(bindparam("rows_max"))
        self.remove = delete(self.table).where(self.table.c.row_id == bindparam("wanted_id"))
        self.count = select(func.count()).select_from(self.table)

    def of(self, connection: AsyncConnection) -> SqlOutbox:
        """The outbox as seen by one transaction."""
        return SqlOutbox(self, connection)


class SqlOutbox:
    """Implements `Outbox`."""

    def __init__(self, table: OutboxTable, connection: AsyncConnection) -> None:
        self._table = table
        self._connection = connection

    async def add(self, message: OutgoingMessage, at_ms: int, traceparent: str | None = None) -> None:
        if message.delay_level or message.deliver_at_ms is not None:
            raise ValueError(f"{message.topic}/{message.tag} is delayed; an outbox keeps what is to be told at once")
        row = {
            "topic": message.topic,
            "tag": message.tag,
            "message_key": message.key,
            "body": message.body,
            "created_at_ms": at_ms,
            "traceparent": traceparent,
        }
        await self._connection.execute(self._table.add, row)

    async def oldest(self, limit: int) -> list[KeptMessage]:
        rows = await self._connection.execute(self._table.oldest, {"rows_max": limit})
        return [
            KeptMessage(row.row_id, OutgoingMessage(row.topic, row.tag, row.message_key, row.body), row.traceparent)
            for row in rows
        ]

    async def remove(self, row_id: int) -> bool:
        return (await self._connection.execute(self._table.remove, {"wanted_id": row_id})).rowcount == 1

    async def count(self) -> int:
        return int((await self._connection.execute(self._table.count)).scalar_one())

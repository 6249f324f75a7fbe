"""The outbox in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orders.adapters.tables import outbox
from orders.service.message import OutgoingMessage
from orders.service.unit_of_work import OutboxRow

_ADD = insert(outbox)
_UNPUBLISHED = (
    select(outbox.c.id, outbox.c.topic, outbox.c.tag, outbox.c.key, outbox.c.body)
    .where(outbox.c.published_at_ms.is_(None))
    .order_by(outbox.c.id)
    .limit(bindparam("rows_max"))
)


class SqlOutbox:
    """Implements `Outbox`; `has_additions` tells the unit of work whether its commit has to wake the relay."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.has_additions = False

    async def add(self, message: OutgoingMessage, at_ms: int) -> None:
        if message.delay_level:
            raise ValueError("the outbox keeps messages without delay; a delay is chosen at the moment of sending")
        row = {
            "topic": message.topic,
            "tag": message.tag,
            "key": message.key,
            "body": message.body.decode(),
            "created_at_ms": at_ms,
        }
        await self._connection.execute(_ADD, row)
        self.has_additions = True

    async def unpublished(self, limit: int) -> list[OutboxRow]:
        rows = await self._connection.execute(_UNPUBLISHED, {"rows_max": limit})
        return [OutboxRow(row.id, OutgoingMessage(row.topic, row.tag, row.key, row.body.encode())) for row in rows]

    async def mark_published(self, row_ids: Sequence[int], at_ms: int) -> None:
        await self._connection.execute(update(outbox).where(outbox.c.id.in_(row_ids)).values(published_at_ms=at_ms))

    async def count_unpublished(self) -> int:
        query = select(func.count()).select_from(outbox).where(outbox.c.published_at_ms.is_(None))
        return (await self._connection.execute(query)).scalar_one()

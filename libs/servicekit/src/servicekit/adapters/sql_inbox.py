"""The inbox in SQL, over mqclient's InboxTable."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from mqclient import IllegalArgumentError
from mqclient.sqlalchemy import InboxTable
from servicekit.errors import MalformedMessageError


class SqlInbox:
    """Implements `Inbox`."""

    def __init__(self, table: InboxTable, connection: AsyncConnection) -> None:
        self._table = table
        self._connection = connection

    async def once(self, consumer_group: str, business_key: str, at_ms: int) -> bool:
        try:
            return await self._table.once(self._connection, consumer_group, business_key, at_ms)
        except IllegalArgumentError as error:
            raise MalformedMessageError(str(error)) from error

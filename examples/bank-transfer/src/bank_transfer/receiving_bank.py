"""Bank B: credits what it hears of, once.

Invariant: the account is credited and the transfer noted in the inbox in one database transaction, so that a message
that comes again changes nothing.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, MetaData, String, Table, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from bank_transfer.order import CREDIT, TOPIC, TransferOrder, read_order
from mqclient import ClientConfig, ConsumeFromWhere, ConsumeStatus, MessageExt, PushConsumer
from mqclient.sqlalchemy import InboxTable
from osenv import Clock

GROUP = "bank-b"

metadata = MetaData()
accounts = Table(
    "accounts",
    metadata,
    Column("account_id", String(64), primary_key=True),
    Column("balance_minor", BigInteger, nullable=False),
)
inbox = InboxTable(metadata)


class UnknownAccountError(Exception):
    """There is no account to credit; the message comes again, and ends as a dead letter that a person looks at."""


class ReceivingBank:
    """Credits. Enter it as a context."""

    def __init__(self, engine: AsyncEngine, url: str, clock: Clock, client_config: ClientConfig | None = None) -> None:
        self._engine = engine
        self._clock = clock
        self.consumer = PushConsumer(
            GROUP, url, client_config=client_config, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        )
        self.consumer.subscribe(TOPIC, CREDIT)
        self.consumer.register_message_listener(self._hear)

    async def _hear(self, messages: list[MessageExt]) -> ConsumeStatus:
        for message in messages:
            await self._receive(read_order(message.body))
        return ConsumeStatus.CONSUME_SUCCESS

    async def _receive(self, order: TransferOrder) -> None:
        async with self._engine.begin() as connection:
            if await inbox.once(connection, GROUP, order.transfer_id, self._clock.wall_ms()):
                await self._credit(connection, order)

    async def _credit(self, connection: AsyncConnection, order: TransferOrder) -> None:
        """Raises UnknownAccountError."""
        credited = await connection.execute(
            update(accounts)
            .where(accounts.c.account_id == order.to_account)
            .values(balance_minor=accounts.c.balance_minor + order.amount_minor)
        )
        if credited.rowcount != 1:
            raise UnknownAccountError(order.to_account)

    async def __aenter__(self) -> ReceivingBank:
        await self.consumer.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.consumer.shutdown()

"""The transfer of the course (mechanism X10) over every point at which somebody can die.

10,000 yuan go from A to B. Whatever dies, and wherever: afterwards both accounts have changed or none has, and the
money of both banks together is what it was. The broker is the real one, in memory; each bank has a database of its own.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import MetaData, Table, func, insert, make_url, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from bank_transfer import receiving_bank, sending_bank
from bank_transfer.order import TOPIC, TransferOrder
from bank_transfer.receiving_bank import ReceivingBank
from bank_transfer.sending_bank import SendingBank, TransferRejectedError
from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin, ClientConfig, LocalTransactionState, Message, Producer, TransactionProducer
from mqclient.sqlalchemy import LocalTransaction, SqlTransactionListener
from mqclient.testing.engines import open_postgresql, open_sqlite
from osenv import Clock
from servicekit.testing.databases import NewDatabaseUrl

YUAN = 100
OPENING = 20_000 * YUAN
AMOUNT = 10_000 * YUAN
ORDER = TransferOrder("transfer-1", "alice", "bob", AMOUNT)
REAL_PATIENCE_S = 30
CHECK_S = 70  # the first check is due 6 s after the half message, and looked for every 60 s


class Point(enum.Enum):
    """Where a process dies, in the order in which a transfer gets there."""

    BEFORE_THE_HALF = "A, before the half message"
    AFTER_THE_HALF = "A, after the half message and before the debit"
    BEFORE_THE_COMMIT_OF_A = "A, after the debit and before its commit"
    AFTER_THE_COMMIT_OF_A = "A, after its commit and before the queue hears of it"
    BEFORE_THE_COMMIT_OF_B = "B, after the credit and before its commit"
    AFTER_THE_COMMIT_OF_B = "B, after its commit and before the queue hears of it"


OF_A = tuple(Point)[:4]
OF_B = tuple(Point)[4:]


class Death:
    """Whoever gets to the point stops there for ever: until its process is taken away. It happens once."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.has_come = asyncio.Event()

    async def here(self, point: Point) -> None:
        if point is self.point and not self.has_come.is_set():
            self.has_come.set()
            await asyncio.Event().wait()


class MortalListener(SqlTransactionListener):
    """Dies on both sides of the local transaction."""

    def __init__(self, death: Death, engine: AsyncEngine, clock: Clock) -> None:
        super().__init__(sending_bank.transactions, engine.begin, clock)
        self._death = death

    async def execute_local_transaction(
        self, message: Message, transaction_id: str, arg: LocalTransaction
    ) -> LocalTransactionState:
        await self._death.here(Point.AFTER_THE_HALF)
        state = await super().execute_local_transaction(message, transaction_id, arg)
        await self._death.here(Point.AFTER_THE_COMMIT_OF_A)
        return state


class MortalSender(SendingBank):
    def __init__(self, death: Death, engine: AsyncEngine, url: str, clock: Clock, client_config: ClientConfig) -> None:
        super().__init__(engine, url, clock, client_config)
        self._death = death
        listener = MortalListener(death, engine, clock)
        self.producer = TransactionProducer(
            sending_bank.GROUP, url, client_config=client_config, transaction_listener=listener
        )

    async def transfer(self, order: TransferOrder) -> None:
        await self._death.here(Point.BEFORE_THE_HALF)
        await super().transfer(order)

    async def _debit(self, connection: AsyncConnection, order: TransferOrder) -> None:
        await super()._debit(connection, order)
        await self._death.here(Point.BEFORE_THE_COMMIT_OF_A)


class MortalReceiver(ReceivingBank):
    def __init__(self, death: Death, engine: AsyncEngine, url: str, clock: Clock, client_config: ClientConfig) -> None:
        super().__init__(engine, url, clock, client_config)
        self._death = death
        self.receptions = 0

    async def _receive(self, order: TransferOrder) -> None:
        self.receptions += 1
        await super()._receive(order)
        await self._death.here(Point.AFTER_THE_COMMIT_OF_B)

    async def _credit(self, connection: AsyncConnection, order: TransferOrder) -> None:
        await super()._credit(connection, order)
        await self._death.here(Point.BEFORE_THE_COMMIT_OF_B)


class World:
    """Two banks with a database each, and the queue between them."""

    def __init__(self, broker: EmbeddedBroker, engine_a: AsyncEngine, engine_b: AsyncEngine) -> None:
        self.broker = broker
        self.engine_a = engine_a
        self.engine_b = engine_b

    def sender(self, life: str = "first") -> tuple[AsyncEngine, str, Clock, ClientConfig]:
        """What bank A is made of; each life is a process of its own."""
        return self.engine_a, self.broker.url, self.broker.clock, ClientConfig(instance_name=life)

    def receiver(self, life: str = "first") -> tuple[AsyncEngine, str, Clock, ClientConfig]:
        return self.engine_b, self.broker.url, self.broker.clock, ClientConfig(instance_name=life)

    async def balances(self) -> tuple[int, int]:
        return await _balance(self.engine_a, sending_bank.accounts), await _balance(
            self.engine_b, receiving_bank.accounts
        )

    async def halves(self) -> int:
        """How many attempts bank A has a row for, committed or buried."""
        return await _count(self.engine_a, sending_bank.transactions.table)

    async def until(self, balances: tuple[int, int]) -> None:
        """Let time pass in the broker's world until the accounts stand so. Raises TimeoutError."""

        async def stand_so() -> bool:
            return await self.balances() == balances

        await self.broker.clock.until(stand_so, step_s=1)

    async def until_checked(self) -> None:
        """Long enough for the queue to ask about what it has not heard of, and for nothing more to come."""
        for _ in range(20):
            await self.broker.clock.advance(CHECK_S / 10)
            await self.balances()


@pytest.fixture
async def world(new_database_url: NewDatabaseUrl, broker: EmbeddedBroker) -> AsyncIterator[World]:
    engine_a = await _bank(new_database_url("a"), sending_bank.metadata, sending_bank.accounts, "alice")
    engine_b = await _bank(new_database_url("b"), receiving_bank.metadata, receiving_bank.accounts, "bob")
    async with Admin(broker.url) as admin:
        await admin.update_topic(TOPIC, read_queue_count=1, write_queue_count=1)
    yield World(broker, engine_a, engine_b)
    await engine_a.dispose()
    await engine_b.dispose()


async def _bank(url: str, metadata: MetaData, accounts: Table, account_id: str) -> AsyncEngine:
    path = make_url(url).database if url.startswith("sqlite") else None
    engine = open_sqlite(Path(path), lock_timeout_s=30) if path else open_postgresql(url, lock_timeout_s=30)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(insert(accounts).values(account_id=account_id, balance_minor=OPENING))
    return engine


async def _balance(engine: AsyncEngine, accounts: Table) -> int:
    async with engine.begin() as connection:
        return int((await connection.execute(select(accounts.c.balance_minor))).scalar_one())


async def _count(engine: AsyncEngine, table: Table) -> int:
    async with engine.begin() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())


BEFORE = (OPENING, OPENING)
AFTER = (OPENING - AMOUNT, OPENING + AMOUNT)


async def test_ten_thousand_leave_one_account_and_reach_the_other(world: World) -> None:
    async with SendingBank(*world.sender()) as bank_a, ReceivingBank(*world.receiver("b")):
        await bank_a.transfer(ORDER)
        await world.until(AFTER)


async def die_as_sender(world: World, death: Death) -> None:
    """Bank A gets to the point in its first life, and is gone."""
    bank = MortalSender(death, *world.sender())
    await bank.producer.start()
    transferring = asyncio.create_task(bank.transfer(ORDER))
    async with asyncio.timeout(REAL_PATIENCE_S):
        await death.has_come.wait()
    transferring.cancel()
    await asyncio.gather(transferring, return_exceptions=True)
    await bank.producer.shutdown(timeout_s=0.0)


@pytest.mark.mechanism("X10")
@pytest.mark.parametrize("point", OF_A, ids=lambda point: point.value)
async def test_whatever_dies_in_bank_a_both_accounts_change_or_none(point: Point, world: World) -> None:
    await die_as_sender(world, Death(point))
    async with SendingBank(*world.sender("second")) as bank_a, ReceivingBank(*world.receiver("b")):
        await world.until_checked()
        is_committed = point is Point.AFTER_THE_COMMIT_OF_A
        assert await world.balances() == (AFTER if is_committed else BEFORE)
        assert await world.halves() == (0 if point is Point.BEFORE_THE_HALF else 1)
        # The customer tries again: it is the same transfer, and it happens once.
        if is_committed:
            with pytest.raises(TransferRejectedError, match="has been debited before"):
                await bank_a.transfer(ORDER)
        else:
            await bank_a.transfer(ORDER)
        await world.until(AFTER)
        await world.until_checked()
        assert await world.balances() == AFTER


@pytest.mark.mechanism("X10")
@pytest.mark.parametrize("point", OF_B, ids=lambda point: point.value)
async def test_whatever_dies_in_bank_b_the_account_is_credited_once(point: Point, world: World) -> None:
    death = Death(point)
    async with SendingBank(*world.sender()) as bank_a:
        first = MortalReceiver(death, *world.receiver("b-1"))
        await first.consumer.start()
        await bank_a.transfer(ORDER)
        async with asyncio.timeout(REAL_PATIENCE_S):
            while not death.has_come.is_set():
                await world.broker.clock.advance(1)
                await asyncio.sleep(0)
        await first.consumer.shutdown(timeout_s=0.0)
        second = MortalReceiver(death, *world.receiver("b-2"))
        async with second, asyncio.timeout(REAL_PATIENCE_S):
            while not second.receptions:
                await world.broker.clock.advance(1)
                await world.balances()
            await world.until(AFTER)
            await world.until_checked()
    assert (first.receptions, second.receptions) == (1, 1)
    assert await world.balances() == AFTER


async def test_a_broker_that_dies_before_it_hears_of_the_commit_asks_and_delivers(world: World) -> None:
    death = Death(Point.AFTER_THE_COMMIT_OF_A)
    await die_as_sender(world, death)
    await world.broker.kill()
    await world.broker.start()
    async with SendingBank(*world.sender("second")), ReceivingBank(*world.receiver("b")):
        await world.until(AFTER)


async def test_an_account_without_enough_is_not_debited_and_none_is_credited(world: World) -> None:
    async with SendingBank(*world.sender()) as bank_a, ReceivingBank(*world.receiver("b")):
        with pytest.raises(TransferRejectedError, match="alice has no 2000001 to give"):
            await bank_a.transfer(TransferOrder("transfer-1", "alice", "bob", OPENING + 1))
        await world.until_checked()
        assert await world.balances() == BEFORE


async def test_an_order_that_is_sent_twice_credits_once(world: World) -> None:
    """The sender dies before it hears of its success, and another one sends again: two ids, one transfer."""
    async with Producer("another", world.broker.url) as producer, ReceivingBank(*world.receiver("b")):
        for _ in range(2):
            await producer.send(ORDER.message())
        await world.until((OPENING, OPENING + AMOUNT))
        await world.until_checked()
        assert await world.balances() == (OPENING, OPENING + AMOUNT)


def test_nothing_or_less_cannot_be_transferred() -> None:
    with pytest.raises(ValueError, match="0 cannot be transferred"):
        TransferOrder("transfer-1", "alice", "bob", 0)

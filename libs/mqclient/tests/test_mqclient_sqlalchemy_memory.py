"""The transaction table with the real broker behind it: attempts, their rows, and their ends (mechanism T14)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import Column, MetaData, String, Table, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin, Message, TransactionProducer, TransactionTombstonedError
from mqclient.sqlalchemy import SqlTransactionListener, TransactionTable
from mqclient.testing.engines import open_sqlite
from mqclient.testing.recording import stored_bodies
from mqclient.transport import open_transport
from mqclient.transport.methods import END_TRANSACTION
from osenv.sim_clock import settle

METADATA = MetaData()
ORDERS = Table("orders", METADATA, Column("id", String, primary_key=True))
TRANSACTIONS = TransactionTable(METADATA)
CHECK_S = 70  # the first check is due 6 s after the half, and looked for every 60 s


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = open_sqlite(tmp_path / "shop.db")
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    yield engine
    await engine.dispose()


class ProcessDiedError(BaseException):
    """Nothing catches it: what comes after does not happen."""


async def insert_order(connection: AsyncConnection, transaction_id: str) -> None:
    assert transaction_id
    await connection.execute(ORDERS.insert().values(id="order-17"))


async def rows(engine: AsyncEngine) -> dict[str, str]:
    async with engine.connect() as connection:
        table = TRANSACTIONS.table
        found = await connection.execute(select(table.c.transaction_id, table.c.outcome))
        return {row.transaction_id: row.outcome for row in found}


async def delivered(broker: EmbeddedBroker) -> list[bytes]:
    async with Admin(broker.url) as admin:
        return await stored_bodies(admin, "orders")


@asynccontextmanager
async def shop(engine: AsyncEngine, broker: EmbeddedBroker) -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """What places the order: returns the attempt's id."""
    listener = SqlTransactionListener(TRANSACTIONS, engine.begin, broker.clock)
    async with TransactionProducer("shop", broker.url, transaction_listener=listener) as producer:

        async def place(work: Callable[..., Awaitable[object]] = insert_order) -> str:
            sent = await producer.send_message_in_transaction(Message("orders", b"order-17"), work)
            await settle()
            return sent.transaction_id

        yield place


@pytest.mark.mechanism("T14")
async def test_row_and_tombstone_have_the_ids_of_their_attempts_and_a_retry_after_a_tombstone_succeeds(
    engine: AsyncEngine, broker: EmbeddedBroker
) -> None:
    ids = []

    async def die(connection: AsyncConnection, transaction_id: str) -> None:
        ids.append(transaction_id)
        await insert_order(connection, transaction_id)
        raise ProcessDiedError

    async with shop(engine, broker) as place:
        with pytest.raises(ProcessDiedError):
            await place(die)
        await broker.clock.advance(CHECK_S)
        assert (await rows(engine), await delivered(broker)) == ({ids[0]: "TOMBSTONE"}, [])
        ids.append(await place())
        assert await rows(engine) == {ids[0]: "TOMBSTONE", ids[1]: "COMMITTED"}
        assert await delivered(broker) == [b"order-17"]


async def test_an_attempt_that_comes_after_its_tombstone_changes_nothing_and_the_next_one_succeeds(
    engine: AsyncEngine, broker: EmbeddedBroker
) -> None:
    ids: list[str] = []
    slow = SqlTransactionListener(TRANSACTIONS, engine.begin, broker.clock)
    execute = slow.execute_local_transaction

    async def sleep_first(message: Message, transaction_id: str, arg: Callable[..., Awaitable[object]]) -> object:
        ids.append(transaction_id)
        if len(ids) == 1:
            await broker.clock.advance(CHECK_S)  # longer than the broker is patient
        return await execute(message, transaction_id, arg)

    slow.execute_local_transaction = sleep_first  # type: ignore[method-assign, assignment]
    async with TransactionProducer("shop", broker.url, transaction_listener=slow) as producer:
        with pytest.raises(TransactionTombstonedError):
            await producer.send_message_in_transaction(Message("orders", b"order-17"), insert_order)
        await producer.send_message_in_transaction(Message("orders", b"order-17"), insert_order)
        await settle()
    assert await rows(engine) == {ids[0]: "TOMBSTONE", ids[1]: "COMMITTED"}
    assert await delivered(broker) == [b"order-17"]


async def test_a_slow_transaction_that_asked_for_patience_is_not_buried(
    engine: AsyncEngine, broker: EmbeddedBroker
) -> None:
    listener = SqlTransactionListener(TRANSACTIONS, engine.begin, broker.clock)

    async def take_long(connection: AsyncConnection, transaction_id: str) -> None:
        await broker.clock.advance(CHECK_S)
        await insert_order(connection, transaction_id)

    checked: list[str] = []
    check = listener.check_local_transaction

    async def note(message: object) -> object:
        checked.append("asked")
        return await check(message)  # type: ignore[arg-type]

    listener.check_local_transaction = note  # type: ignore[method-assign, assignment]
    async with TransactionProducer("shop", broker.url, transaction_listener=listener) as producer:
        message = Message("orders", b"order-17")
        await producer.send_message_in_transaction(message, take_long, check_immunity_s=300)
        await settle()
    assert (checked, await delivered(broker)) == ([], [b"order-17"])


@pytest.mark.mechanism("T14")
@pytest.mark.parametrize("again", [broker_pb.ROLLBACK_MESSAGE, broker_pb.COMMIT_MESSAGE])
async def test_ending_a_closed_transaction_again_returns_its_first_outcome_and_delivers_nothing_twice(
    engine: AsyncEngine, broker: EmbeddedBroker, again: broker_pb.TransactionState.ValueType
) -> None:
    async with shop(engine, broker) as place:
        id_ = await place()
        (status,) = await _statuses(broker)
        channel = open_transport(broker.url).open_channel(status)
        for _ in range(2):
            request = broker_pb.EndTransactionRequest(producer_group="shop", transaction_id=id_, state=again)
            answer = await channel.unary(END_TRANSACTION, request, 3.0)
            assert (answer.code, answer.outcome) == (0, broker_pb.COMMIT_MESSAGE)
        await channel.close()
    assert await delivered(broker) == [b"order-17"]


async def _statuses(broker: EmbeddedBroker) -> list[str]:
    async with Admin(broker.url) as admin:
        return [status.address for status in await admin.broker_statuses()]

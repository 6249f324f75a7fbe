"""The transaction table: whatever dies in between, message and business row agree (mechanism T14)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Column, MetaData, String, Table, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase

import mqclient
from mqclient import (
    CheckUnansweredError,
    LocalTransactionState,
    Message,
    MessageExt,
    RetryableError,
    TransactionNotBegunError,
    TransactionProducer,
    TransactionTombstonedError,
)
from mqclient.sqlalchemy import SqlTransactionListener, TransactionTable
from mqclient.testing import FakeBroker, FakeCluster
from mqclient.testing.engines import open_postgresql, open_sqlite
from mqproto.properties import encode_properties
from mqproto.record import decode_record, encode_record, pack_ip
from osenv import SimClock
from osenv.sim_clock import settle

COMMIT, ROLLBACK, UNKNOW = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)
POSTGRESQL = pytest.param("postgresql", marks=[pytest.mark.system, pytest.mark.needs("postgresql")])
METADATA = MetaData()
ORDERS = Table("orders", METADATA, Column("id", String, primary_key=True))
TRANSACTIONS = TransactionTable(METADATA)


@pytest.fixture(params=["begin immediate", "driver default", POSTGRESQL])
async def engine(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    if request.param == "postgresql":
        engine = open_postgresql(request.getfixturevalue("new_postgresql_url")("shop"))
    else:
        engine = open_sqlite(tmp_path / "shop.db", strict=request.param == "begin immediate")
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    yield engine
    await engine.dispose()


async def orders(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return list((await connection.execute(select(ORDERS.c.id).order_by(ORDERS.c.id))).scalars())


async def rows(engine: AsyncEngine) -> dict[str, str]:
    async with engine.connect() as connection:
        table = TRANSACTIONS.table
        found = await connection.execute(select(table.c.transaction_id, table.c.outcome))
        return {row.transaction_id: row.outcome for row in found}


async def answer(engine: AsyncEngine, id_: str) -> LocalTransactionState:
    async with engine.begin() as connection:
        return await TRANSACTIONS.answer_check(connection, id_, 1_000)


async def answer_of_listener(engine: AsyncEngine, id_: str) -> LocalTransactionState:
    """What a broker would be told. Raises CheckUnansweredError."""
    listener = SqlTransactionListener(TRANSACTIONS, engine.begin, SimClock())
    return await listener.check_local_transaction(asked_for(id_))


def asked_for(id_: str) -> MessageExt:
    """The half message of a check."""
    properties = encode_properties({"PGROUP": "shop", "UNIQ_KEY": id_})
    record = encode_record(
        topic=b"orders", body=b"x", properties=properties, queue_id=0, born_timestamp_ms=1, born_ip=pack_ip("127.0.0.1")
    )
    return MessageExt(decode_record(bytes(record)), "broker-a")


def placing(order: str) -> Callable[..., Awaitable[None]]:
    async def place(connection: AsyncConnection, transaction_id: str) -> None:
        assert transaction_id
        await connection.execute(ORDERS.insert().values(id=order))

    return place


class TestTable:
    async def test_a_recorded_transaction_is_committed(self, engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            await TRANSACTIONS.record(connection, "tx", 1_000)
        assert await answer(engine, "tx") is COMMIT
        assert await rows(engine) == {"tx": "COMMITTED"}

    async def test_an_unknown_one_is_buried_and_stays_so(self, engine: AsyncEngine) -> None:
        assert [await answer(engine, "tx") for _ in range(2)] == [ROLLBACK, ROLLBACK]
        assert await rows(engine) == {"tx": "TOMBSTONE"}

    async def test_a_late_local_transaction_fails_on_the_tombstone_whole(self, engine: AsyncEngine) -> None:
        await answer(engine, "tx")
        async with engine.connect() as connection:
            await connection.execute(ORDERS.insert().values(id="order-17"))
            with pytest.raises(TransactionTombstonedError, match="tx has ended already") as caught:
                await TRANSACTIONS.record(connection, "tx", 1_000)
        assert isinstance(caught.value, RetryableError)
        assert (await orders(engine), await rows(engine)) == ([], {"tx": "TOMBSTONE"})

    async def test_row_and_business_rows_roll_back_together(self, engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            await TRANSACTIONS.record(connection, "tx", 1_000)
            await connection.execute(ORDERS.insert().values(id="order-17"))
            await connection.rollback()
        assert (await orders(engine), await rows(engine)) == ([], {})

    async def test_a_session_does_as_well_and_its_pending_work_is_not_mistaken(self, engine: AsyncEngine) -> None:
        sessions = async_sessionmaker(engine)
        async with sessions() as session:
            await TRANSACTIONS.record(session, "tx", 1_000)
            await session.commit()
        async with sessions() as session:
            assert await TRANSACTIONS.answer_check(session, "tx", 1_000) is COMMIT
        async with sessions.begin() as session:
            assert await TRANSACTIONS.answer_check(session, "other", 1_000) is ROLLBACK
        assert await rows(engine) == {"tx": "COMMITTED", "other": "TOMBSTONE"}

    async def test_a_connection_that_is_rolled_back_unless_committed_does_as_well(self, engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            await connection.begin()
            assert await TRANSACTIONS.answer_check(connection, "tx", 1_000) is ROLLBACK
        assert await rows(engine) == {"tx": "TOMBSTONE"}

    async def test_a_race_on_the_key_is_looked_at_again(
        self, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with engine.begin() as connection:
            await TRANSACTIONS.record(connection, "tx", 1_000)
        find, looks = TRANSACTIONS._find, 0

        async def find_too_early(connection: AsyncConnection, id_: str) -> LocalTransactionState:
            nonlocal looks
            looks += 1
            return UNKNOW if looks == 1 else await find(connection, id_)

        monkeypatch.setattr(TRANSACTIONS, "_find", find_too_early)
        assert await answer(engine, "tx") is COMMIT
        assert looks == 2

    async def test_a_check_has_no_answer_until_the_local_transaction_has_ended(self, engine: AsyncEngine) -> None:
        async with engine.connect() as local:
            await TRANSACTIONS.record(local, "tx", 1_000)
            with pytest.raises(CheckUnansweredError):
                await answer_of_listener(engine, "tx")
            await local.commit()
        assert await answer(engine, "tx") is COMMIT

    async def test_a_database_without_the_table_has_no_answer(self, tmp_path: Path) -> None:
        engine = open_sqlite(tmp_path / "empty.db", strict=False)
        with pytest.raises(CheckUnansweredError, match="no such table"):
            await answer(engine, "tx")
        await engine.dispose()

    async def test_a_database_that_cannot_be_opened_has_no_answer(self, tmp_path: Path) -> None:
        engine = open_sqlite(tmp_path / "gone" / "shop.db", strict=False)
        before = set(threading.enumerate())
        with pytest.raises(CheckUnansweredError, match="unable to open"):
            await answer_of_listener(engine, "tx")
        await engine.dispose()
        for thread in set(threading.enumerate()) - before:  # the driver's, which still answers to this loop
            await asyncio.to_thread(thread.join)

    async def test_purge_forgets_what_is_older(self, engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            for now_ms in (1_000, 2_000, 3_000):
                await TRANSACTIONS.record(connection, f"{now_ms}", now_ms)
        async with engine.begin() as connection:
            assert await TRANSACTIONS.purge(connection, 3_000) == 2
        assert await rows(engine) == {"3000": "COMMITTED"}

    async def test_the_database_itself_rejects_another_outcome(self, engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            with pytest.raises(IntegrityError, match="ck_mq_transaction_outcome"):
                await connection.execute(text("INSERT INTO mq_transaction VALUES ('tx', 'MAYBE', 1)"))


@dataclass
class Shop:
    """One producer with the table behind it, and the broker."""

    engine: AsyncEngine
    cluster: FakeCluster
    broker: FakeBroker
    producer: TransactionProducer

    async def place(self, order: str, work: Callable[..., Awaitable[object]] | None = None) -> None:
        await self.producer.send_message_in_transaction(Message("orders", order.encode()), work or placing(order))

    async def check_all(self) -> None:
        """The broker asks for everything that is open, until nothing is."""
        for id_ in list(self.broker.transactions.open):
            self.broker.check(id_)
        async with asyncio.timeout(10):
            while self.broker.transactions.open:  # noqa: ASYNC110 - a fake sets no event
                await asyncio.sleep(0.001)

    async def delivered(self) -> list[str]:
        return sorted(body.decode() for body in self.broker.bodies)


@pytest.fixture
async def shop(engine: AsyncEngine) -> AsyncIterator[Shop]:
    cluster, (broker,) = FakeCluster.of("broker-a")
    listener = SqlTransactionListener(TRANSACTIONS, engine.begin, cluster.clock)
    async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
        yield Shop(engine, cluster, broker, producer)


class ProcessDiedError(BaseException):
    """Nothing catches it: what comes after does not happen."""


class TestCrashPoints:
    @pytest.mark.mechanism("T14")
    async def test_no_crash_delivers_what_was_committed(self, shop: Shop) -> None:
        await shop.place("order-17")
        await settle()
        assert (await orders(shop.engine), await shop.delivered()) == (["order-17"], ["order-17"])
        assert list((await rows(shop.engine)).values()) == ["COMMITTED"]

    async def test_before_the_half_nothing_has_happened(self, shop: Shop) -> None:
        shop.broker.silent = True
        shop.broker.break_streams()
        shop.broker.down = True
        placing_ = asyncio.create_task(shop.place("order-17"))
        await shop.cluster.clock.advance(4)
        with pytest.raises(RetryableError):
            await placing_
        assert (await orders(shop.engine), await shop.delivered()) == ([], [])
        shop.broker.down = shop.broker.silent = False

    async def test_after_the_half_a_check_rolls_back_and_the_retry_succeeds(self, shop: Shop) -> None:
        shop.broker.silent = True
        placing_ = asyncio.create_task(shop.place("order-17"))
        await shop.cluster.clock.advance(3.1)
        shop.broker.produce(shop.broker.frames[0])  # the half is stored, without an answer
        with pytest.raises(TransactionNotBegunError):
            await placing_
        shop.broker.silent = False
        await shop.check_all()
        assert (await orders(shop.engine), await shop.delivered()) == ([], [])
        assert list((await rows(shop.engine)).values()) == ["TOMBSTONE"]
        await shop.place("order-17")
        await settle()
        assert (await orders(shop.engine), await shop.delivered()) == (["order-17"], ["order-17"])

    async def test_inside_the_local_transaction_a_check_rolls_back(self, shop: Shop) -> None:
        async def die(connection: AsyncConnection, _: str) -> None:
            await connection.execute(ORDERS.insert().values(id="order-17"))
            raise ProcessDiedError

        with pytest.raises(ProcessDiedError):
            await shop.place("order-17", die)
        assert shop.broker.transactions.requests == []
        await shop.check_all()
        assert (await orders(shop.engine), await shop.delivered()) == ([], [])
        await shop.place("order-17")
        await settle()
        assert await shop.delivered() == ["order-17"]

    async def test_after_the_local_commit_a_check_commits(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        commit = AsyncConnection.commit

        async def commit_and_die(connection: AsyncConnection) -> None:
            await commit(connection)
            raise ProcessDiedError

        with monkeypatch.context() as patch:
            patch.setattr(AsyncConnection, "commit", commit_and_die)
            with pytest.raises(ProcessDiedError):
                await shop.place("order-17")
        assert await shop.delivered() == []
        await shop.check_all()
        assert (await orders(shop.engine), await shop.delivered()) == (["order-17"], ["order-17"])

    @pytest.mark.parametrize("committed", [True, False])
    async def test_a_commit_of_unknown_outcome_is_found_out_by_a_check(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch, committed: bool
    ) -> None:
        commit = AsyncConnection.commit

        async def lose_the_answer(connection: AsyncConnection) -> None:
            await (commit(connection) if committed else connection.rollback())
            raise OperationalError("COMMIT", None, OSError("the connection broke"))

        with monkeypatch.context() as patch:
            patch.setattr(AsyncConnection, "commit", lose_the_answer)
            with pytest.raises(OperationalError, match="the connection broke"):
                await shop.place("order-17")
        assert shop.broker.transactions.requests == []
        await shop.check_all()
        expected = ["order-17"] if committed else []
        assert (await orders(shop.engine), await shop.delivered()) == (expected, expected)

    async def test_an_error_before_the_commit_rolls_back_at_once_and_reaches_the_caller(self, shop: Shop) -> None:
        async def sold_out(connection: AsyncConnection, _: str) -> None:
            await connection.execute(ORDERS.insert().values(id="order-17"))
            raise KeyError("sold out")

        with pytest.raises(KeyError, match="sold out"):
            await shop.place("order-17", sold_out)
        await settle()
        assert [request.from_check for request in shop.broker.transactions.requests] == [False]
        assert (shop.broker.transactions.open, await orders(shop.engine), await rows(shop.engine)) == ({}, [], {})

    async def test_a_check_before_the_local_transaction_wins_and_the_retry_succeeds(self, shop: Shop) -> None:
        gate = asyncio.Event()

        @asynccontextmanager
        async def begin_late() -> AsyncIterator[AsyncConnection]:
            await gate.wait()
            async with shop.engine.begin() as connection:
                yield connection

        listener = SqlTransactionListener(TRANSACTIONS, begin_late, shop.cluster.clock)
        executing = asyncio.create_task(
            listener.execute_local_transaction(Message("orders", b"x"), "tx", placing("order-17"))
        )
        await settle()
        assert await answer(shop.engine, "tx") is ROLLBACK
        gate.set()
        with pytest.raises(mqclient.LocalTransactionRolledBackError) as caught:
            await executing
        assert isinstance(caught.value.cause, TransactionTombstonedError)
        assert await orders(shop.engine) == []
        await shop.place("order-17")
        assert await orders(shop.engine) == ["order-17"]

    @pytest.mark.mechanism("T14")
    @pytest.mark.parametrize("round_", range(20))
    async def test_of_a_check_and_a_late_local_transaction_exactly_one_wins(
        self, engine: AsyncEngine, round_: int
    ) -> None:
        listener = SqlTransactionListener(TRANSACTIONS, engine.begin, SimClock())

        async def local() -> bool:
            for _ in range(round_):
                await asyncio.sleep(0)
            try:
                state = await listener.execute_local_transaction(Message("t", b"x"), "tx", placing("order-17"))
            except mqclient.LocalTransactionRolledBackError:
                return False
            return state is COMMIT

        async def check() -> LocalTransactionState:
            async with asyncio.timeout(10):
                while True:
                    with suppress(CheckUnansweredError):  # the local transaction holds the file
                        return await answer_of_listener(engine, "tx")

        committed, state = await asyncio.gather(local(), check())
        assert (state is COMMIT) == committed
        assert await orders(engine) == (["order-17"] if committed else [])


async def test_a_database_that_is_away_rolls_back_what_never_began() -> None:
    clock = SimClock()

    def away() -> AbstractAsyncContextManager[AsyncConnection]:
        raise ConnectionRefusedError("no database")

    listener = SqlTransactionListener(TRANSACTIONS, away, clock)
    with pytest.raises(mqclient.LocalTransactionRolledBackError) as caught:
        await listener.execute_local_transaction(Message("t", b"x"), "tx", placing("order-17"))
    assert isinstance(caught.value.cause, ConnectionRefusedError)


async def test_what_a_session_is_rejected_while_flushing_is_not_yet_the_commit(engine: AsyncEngine) -> None:
    listener = SqlTransactionListener(TRANSACTIONS, async_sessionmaker(engine), SimClock())

    class Base(DeclarativeBase):
        metadata = METADATA

    class Order(Base):
        __table__ = ORDERS

    async def place(session: AsyncSession, _: str) -> None:
        session.add(Order(id="order-17"))

    assert await listener.execute_local_transaction(Message("t", b"x"), "first", place) is COMMIT
    with pytest.raises(mqclient.LocalTransactionRolledBackError) as caught:
        await listener.execute_local_transaction(Message("t", b"x"), "second", place)
    assert isinstance(caught.value.cause, IntegrityError)
    assert await rows(engine) == {"first": "COMMITTED"}

"""The inbox on SQLite and PostgreSQL: a business key is consumed once (mechanism I2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, MetaData, String, Table, select
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase

from mqclient import IllegalArgumentError, IllegalGroupError
from mqclient.sqlalchemy import BUSINESS_KEY_LENGTH_MAX, InboxTable
from mqclient.testing.engines import open_postgresql, open_sqlite

POSTGRESQL = pytest.param("postgresql", marks=[pytest.mark.system, pytest.mark.needs("postgresql")])
METADATA = MetaData()
DEBITS = Table("debits", METADATA, Column("order_id", String, primary_key=True), Column("yuan", BigInteger))
INBOX = InboxTable(METADATA)
KEY = "ORDERID_100"


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


async def consumed(engine: AsyncEngine) -> list[tuple[str, str, int]]:
    async with engine.connect() as connection:
        rows = await connection.execute(select(INBOX.table).order_by(*INBOX.table.primary_key))
        return [(row.consumer_group, row.business_key, row.consumed_at_ms) for row in rows]


async def debits(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return list(await connection.scalars(select(DEBITS.c.order_id).order_by(DEBITS.c.order_id)))


async def once(connection: AsyncConnection | AsyncSession, key: str = KEY, group: str = "accounts") -> bool:
    return await INBOX.once(connection, group, key, 1_000)


@pytest.mark.mechanism("I2")
async def test_only_the_first_time_is_the_first(engine: AsyncEngine) -> None:
    for expected in (True, False, False):
        async with engine.begin() as connection:
            assert await once(connection) is expected
    assert await consumed(engine) == [("accounts", KEY, 1_000)]


async def test_groups_and_keys_do_not_know_each_other(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        assert [await once(connection, key, group) for group in ("a", "b") for key in ("x", "y")] == [True] * 4
        assert [await once(connection, key, group) for group in ("a", "b") for key in ("x", "y")] == [False] * 4


async def test_a_key_is_the_text_that_it_is_and_not_what_a_pattern_makes_of_it(engine: AsyncEngine) -> None:
    keys = ["k", "K", "%", "k%", "'", " k", "订单-100", "k" * BUSINESS_KEY_LENGTH_MAX]
    async with engine.begin() as connection:
        assert [await once(connection, key) for key in keys] == [True] * len(keys)


async def test_what_is_rolled_back_was_not_consumed(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await connection.begin()
        assert await once(connection)
        await connection.execute(DEBITS.insert().values(order_id=KEY, yuan=100))
        await connection.rollback()
    assert (await debits(engine), await consumed(engine)) == ([], [])
    async with engine.begin() as connection:
        assert await once(connection)


async def test_business_rows_that_are_rejected_take_the_key_back_with_them(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(DEBITS.insert().values(order_id=KEY, yuan=100))
    async with engine.connect() as connection:
        await connection.begin()
        assert await once(connection)
        with pytest.raises(IntegrityError):
            await connection.execute(DEBITS.insert().values(order_id=KEY, yuan=100))
    assert await consumed(engine) == []


async def test_a_transaction_that_hears_no_goes_on(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await once(connection)
    async with engine.begin() as connection:
        await connection.execute(DEBITS.insert().values(order_id="before", yuan=1))
        assert not await once(connection)
        await connection.execute(DEBITS.insert().values(order_id="after", yuan=1))
    assert await debits(engine) == ["after", "before"]


async def test_a_session_does_as_well_and_flushes_nothing_early(engine: AsyncEngine) -> None:
    class Base(DeclarativeBase):
        metadata = METADATA

    class Debit(Base):
        __table__ = DEBITS

    sessions = async_sessionmaker(engine)
    async with sessions() as session:
        session.add(Debit(order_id=KEY, yuan=100))
        assert await once(session)
        assert session.new
        await session.commit()
    async with sessions() as session:
        assert not await once(session)
    assert (await debits(engine), len(await consumed(engine))) == ([KEY], 1)
    async with sessions() as session:
        assert await once(session, "another")
        await session.rollback()
    assert len(await consumed(engine)) == 1


@pytest.mark.parametrize("first_commits", [True, False])
async def test_of_two_at_one_moment_the_second_waits_for_what_becomes_of_the_first(
    new_database_url: Callable[[str], str], first_commits: bool
) -> None:
    url = new_database_url("shop")
    if url.startswith("sqlite"):
        engine = open_sqlite(Path(url.removeprefix("sqlite+aiosqlite:///")), lock_timeout_s=30)
    else:
        engine = open_postgresql(url, lock_timeout_s=30)
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)

    async def second() -> bool:
        async with engine.begin() as connection:
            return await once(connection)

    async with engine.connect() as first:
        await first.begin()
        assert await once(first)
        waiting = asyncio.create_task(second())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
        await (first.commit() if first_commits else first.rollback())
    assert await waiting is not first_commits
    await engine.dispose()


@pytest.mark.mechanism("I2")
@pytest.mark.parametrize("round_", range(20))
async def test_of_many_at_one_moment_exactly_one_is_the_first(engine: AsyncEngine, round_: int) -> None:
    async def member(steps: int) -> bool:
        for _ in range(steps):
            await asyncio.sleep(0)
        while True:
            try:
                async with engine.begin() as connection:
                    if not await once(connection):
                        return False
                    await connection.execute(DEBITS.insert().values(order_id=KEY, yuan=100))
                    return True
            except DBAPIError:  # the other one holds the file for longer than this one waits: it comes again
                await asyncio.sleep(0)

    firsts = await asyncio.gather(*(member(number * round_) for number in range(4)))
    assert sum(firsts) == 1
    assert await debits(engine) == [KEY]


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("", "has 0 characters; allowed are 1 to 255"),
        ("k" * 256, "has 256 characters; allowed are 1 to 255"),
        ("a\x00b", "not printable"),
        ("a\nb", "not printable"),
        ("\ud800", "not printable"),
    ],
)
async def test_a_key_that_no_table_keeps_is_rejected(engine: AsyncEngine, key: str, sentence: str) -> None:
    async with engine.connect() as connection:
        with pytest.raises(IllegalArgumentError, match=sentence):
            await once(connection, key)
    assert await consumed(engine) == []


@pytest.mark.parametrize("group", ["", "a b", "g" * 256])
async def test_a_group_that_the_queue_does_not_take_is_rejected(engine: AsyncEngine, group: str) -> None:
    async with engine.connect() as connection:
        with pytest.raises(IllegalGroupError):
            await once(connection, group=group)


async def test_purge_forgets_the_oldest_first_and_no_more_than_it_was_told(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for at_ms in (1_000, 4_000, 2_000, 3_000):
            assert await INBOX.once(connection, "accounts", f"k-{at_ms}", at_ms)
    async with engine.begin() as connection:
        assert await INBOX.purge(connection, 4_000, rows_max=2) == 2
    assert [key for _, key, _ in await consumed(engine)] == ["k-3000", "k-4000"]
    async with engine.begin() as connection:
        assert await INBOX.purge(connection, 4_000, rows_max=2) == 1
        assert await INBOX.purge(connection, 4_000) == 0
    async with engine.begin() as connection:
        assert await INBOX.once(connection, "accounts", "k-1000", 9_000)


async def test_the_purge_goes_by_the_index(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        statement = INBOX._expiry._delete.compile(connection.sync_connection)
        parameters = statement.construct_params({"older_than_ms": 1, "rows_max": 1})
        values = tuple(parameters[name] for name in statement.positiontup or ())
        explain = "EXPLAIN QUERY PLAN"
        if connection.dialect.name == "postgresql":
            explain = "EXPLAIN"
            await connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # which it prefers while there is no row
        plan = await connection.exec_driver_sql(f"{explain} {statement}", values)
        assert any("ix_mq_inbox_consumed_at_ms" in row[-1] for row in plan)


def test_postgresql_is_asked_in_one_statement_that_aborts_no_transaction() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    statement = str(INBOX._insert_of_dialect["postgresql"].compile(dialect=dialect))
    assert "INSERT INTO mq_inbox (consumer_group, business_key, consumed_at_ms) VALUES" in statement
    assert "ON CONFLICT DO NOTHING RETURNING mq_inbox.business_key" in statement


async def test_a_database_that_it_is_not_made_for_is_rejected_by_name(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine.connect() as connection:
        monkeypatch.setattr(type(connection), "dialect", mysql.dialect())
        with pytest.raises(IllegalArgumentError, match="for mysql; it works with postgresql and sqlite"):
            await once(connection)

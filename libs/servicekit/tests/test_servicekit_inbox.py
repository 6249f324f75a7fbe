"""The inbox of a unit of work, and the cleaning of what is there for repetitions only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Column, MetaData, String, Table, func, insert, select

from mqclient.sqlalchemy import InboxTable, TransactionTable
from osenv import SimClock
from servicekit.errors import ConsumedBeforeError, MalformedMessageError
from servicekit.sql.database import Database
from servicekit.sql.tables import IDEMPOTENCY_KEYS_KEEP_DAYS, INBOX_KEEP_DAYS, IdempotencyKeysTable, SqlInbox, cleaning
from servicekit.sql.units import TRANSACTIONS_KEEP_DAYS, KeyClaim, require_first
from servicekit.testing import until
from servicekit.testing.databases import NewDatabaseUrl

DAY_MS = 86_400_000
METADATA = MetaData()
THINGS = Table("things", METADATA, Column("thing_id", String(64), primary_key=True))
INBOX = InboxTable(METADATA)
TRANSACTIONS = TransactionTable(METADATA)
KEYS = IdempotencyKeysTable(METADATA, THINGS.c.thing_id)


@pytest.fixture
async def database(new_database_url: NewDatabaseUrl) -> AsyncIterator[Database]:
    database = Database(new_database_url("x"))
    async with database.writing() as connection:
        await connection.run_sync(METADATA.create_all)
        await connection.commit()
    yield database
    await database.dispose()


async def once(database: Database, *, commits: bool = True) -> bool:
    async with database.writing() as connection:
        is_first = await SqlInbox(INBOX, connection).once("group", "ORDERID_100", 1)
        if commits:
            await connection.commit()
    return is_first


async def test_a_key_is_consumed_with_its_unit_and_only_then(database: Database) -> None:
    assert [await once(database, commits=False) for _ in range(2)] == [True, True]
    assert [await once(database) for _ in range(3)] == [True, False, False]


async def test_of_twenty_at_one_moment_exactly_one_is_the_first(database: Database) -> None:
    async def consume() -> bool:
        async with database.writing() as connection:
            is_first = await SqlInbox(INBOX, connection).once("group", "ORDERID_100", 1)
            if is_first:
                await connection.execute(insert(THINGS), {"thing_id": "ORDERID_100"})
            await connection.commit()
        return is_first

    assert sorted(await asyncio.gather(*(consume() for _ in range(20)))) == [False] * 19 + [True]


async def test_a_unit_that_has_to_be_first_is_rejected_the_second_time(database: Database) -> None:
    async with database.writing() as connection:
        inbox = SqlInbox(INBOX, connection)
        await require_first(inbox, "group", "ORDERID_100", 1)
        with pytest.raises(ConsumedBeforeError, match="group has consumed 'ORDERID_100' before"):
            await require_first(inbox, "group", "ORDERID_100", 1)


@pytest.mark.parametrize("key", ["", "k" * 256, "a\x00"])
async def test_a_message_whose_key_no_table_keeps_is_malformed(database: Database, key: str) -> None:
    async with database.writing() as connection:
        with pytest.raises(MalformedMessageError, match="the business key"):
            await SqlInbox(INBOX, connection).once("group", key, 1)


async def fill(database: Database, clock: SimClock, days_old: int) -> None:
    """A row of this age in each of the three tables."""
    at_ms, name = clock.wall_ms() - days_old * DAY_MS, f"{days_old}"
    async with database.writing() as connection:
        await INBOX.once(connection, "group", name, at_ms)
        await TRANSACTIONS.record(connection, name, at_ms)
        await connection.execute(insert(THINGS), {"thing_id": name})
        await KEYS.of(connection).claim(KeyClaim("b", name, "f", name), at_ms)
        await connection.commit()


async def counts(database: Database) -> list[int]:
    async with database.snapshot() as connection:
        tables = (INBOX.table, TRANSACTIONS.table, KEYS.table)
        return [(await connection.execute(select(func.count()).select_from(one))).scalar_one() for one in tables]


async def test_the_cleaning_forgets_each_kind_after_its_time(database: Database) -> None:
    assert (INBOX_KEEP_DAYS, TRANSACTIONS_KEEP_DAYS, IDEMPOTENCY_KEYS_KEEP_DAYS) == (14, 30, 30)
    clock = SimClock()
    for days_old in (31, 15, 1):
        await fill(database, clock, days_old)
    background = cleaning(database, clock, inbox=INBOX, transactions=TRANSACTIONS, idempotency_keys=KEYS)
    assert background.name == "cleaning"
    running = asyncio.ensure_future(background.run())
    await clock.advance(599)
    assert await counts(database) == [3, 3, 3]
    await clock.advance(1)
    await until(lambda: clock.timers > 0)
    assert await counts(database) == [1, 2, 2]
    background.stop()
    await running
    async with database.snapshot() as connection:
        assert (await connection.execute(select(func.count()).select_from(THINGS))).scalar_one() == 3

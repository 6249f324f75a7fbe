"""Units of work on both databases: which wait for which, and what stays after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from servicekit.sql.backends import FailedUnitError
from servicekit.sql.database import Database, without_password
from servicekit.testing.databases import NewDatabaseUrl

METADATA = MetaData()
ROWS = Table("rows_of_test", METADATA, Column("n", Integer, primary_key=True), Column("value", Integer))
VALUE = 0


@pytest.fixture
async def database(new_database_url: NewDatabaseUrl) -> AsyncIterator[Database]:
    database = Database(new_database_url("x"))
    async with database.writing() as connection:
        await connection.run_sync(METADATA.create_all)
        await connection.commit()
    yield database
    await database.dispose()


async def count(database: Database) -> int:
    async with database.snapshot() as connection:
        return (await connection.execute(select(func.count()).select_from(ROWS))).scalar_one()


async def write(database: Database, *numbers: int) -> None:
    async with database.writing() as connection:
        for n in numbers:
            await connection.execute(insert(ROWS), {"n": n, "value": VALUE})
        await connection.commit()


async def test_a_unit_that_is_not_committed_is_rolled_back(database: Database) -> None:
    async with database.writing() as connection:
        await connection.execute(insert(ROWS), {"n": 1})

    async def fail() -> None:
        async with database.writing() as connection:
            await connection.execute(insert(ROWS), {"n": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await count(database) == 0


async def test_a_cancelled_unit_is_rolled_back_and_the_next_writer_goes_on(database: Database) -> None:
    inside = asyncio.Event()

    async def wait_inside() -> None:
        async with database.writing() as connection:
            await connection.execute(insert(ROWS), {"n": 1})
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait_inside())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await write(database, 1)
    assert await count(database) == 1


async def test_a_unit_cancelled_at_any_step_leaves_all_or_nothing_and_no_lock(database: Database) -> None:
    await write(database, 0)  # so that a connection is open, and its units need no more steps than statements
    for steps in range(1, 30):
        first = 10 * steps
        task = asyncio.create_task(write(database, first, first + 1))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with database.snapshot() as connection:
            kept = (await connection.scalars(select(ROWS.c.n).where(ROWS.c.n >= first))).all()
        assert kept in ([], [first, first + 1])
        await write(database, first + 2)


async def test_readers_do_not_wait_for_a_writer_and_see_the_state_before_it(database: Database) -> None:
    async with database.writing() as connection:
        await connection.execute(insert(ROWS), {"n": 1})
        assert await count(database) == 0
        await connection.commit()
    assert await count(database) == 1


async def test_a_reader_sees_one_state_whatever_is_committed_meanwhile(database: Database) -> None:
    async with database.snapshot() as connection:
        assert (await connection.execute(select(func.count()).select_from(ROWS))).scalar_one() == 0
        await write(database, 1)
        assert (await connection.execute(select(func.count()).select_from(ROWS))).scalar_one() == 0
    assert await count(database) == 1


async def test_a_look_sees_what_is_committed_and_nothing_else(database: Database) -> None:
    async def look() -> int:
        async with database.autocommit() as connection:
            return (await connection.execute(select(func.count()).select_from(ROWS))).scalar_one()

    async with database.writing() as connection:
        await connection.execute(insert(ROWS), {"n": 1})
        assert await look() == 0
        await connection.commit()
    assert await look() == 1
    await write(database, 2)  # on the connection that was looked through
    assert await look() == 2


async def test_fifty_writers_at_once_queue_up_and_none_finds_the_database_locked(database: Database) -> None:
    await asyncio.gather(*(write(database, n) for n in range(50)))
    assert await count(database) == 50


async def test_fifty_writers_of_one_row_lose_none_of_their_changes(database: Database) -> None:
    await write(database, 1)

    async def add_one() -> int:
        async with database.writing() as connection:
            changed = await connection.execute(update(ROWS).values(value=ROWS.c.value + 1).where(ROWS.c.n == 1))
            await connection.commit()
            return changed.rowcount

    assert await asyncio.gather(*(add_one() for _ in range(50))) == [1] * 50
    async with database.snapshot() as connection:
        assert (await connection.execute(select(ROWS.c.value))).scalar_one() == 50


async def test_a_unit_in_which_a_statement_failed_cannot_be_committed(database: Database) -> None:
    await write(database, 1)

    async def catch_and_commit() -> None:
        async with database.writing() as connection:
            await connection.execute(insert(ROWS), {"n": 2})
            with pytest.raises(IntegrityError):
                await connection.execute(insert(ROWS), {"n": 1})
            await connection.commit()

    with pytest.raises(FailedUnitError, match="can only be rolled back"):
        await catch_and_commit()
    assert await count(database) == 1
    await write(database, 2)  # the connection is as good as before
    assert await count(database) == 2


async def test_a_commit_that_fails_keeps_nothing_and_leaves_no_transaction_behind(database: Database) -> None:
    async with database.writing() as connection:
        await connection.execute(
            text("CREATE TABLE checked_late (n INTEGER REFERENCES rows_of_test (n) DEFERRABLE INITIALLY DEFERRED)")
        )
        await connection.commit()

    async def commit_too_much() -> None:
        async with database.writing() as connection:
            await connection.execute(insert(ROWS), {"n": 1})
            await connection.execute(text("INSERT INTO checked_late VALUES (2)"))
            await connection.commit()

    for _ in range(2):
        with pytest.raises(IntegrityError):
            await commit_too_much()
    assert await count(database) == 0
    await write(database, 1)
    assert await count(database) == 1


async def test_what_failed_in_a_savepoint_goes_with_it_and_the_rest_is_committed(database: Database) -> None:
    await write(database, 1)
    async with database.writing() as connection:
        await connection.execute(insert(ROWS), {"n": 2})
        with pytest.raises(IntegrityError):
            async with connection.begin_nested():
                await connection.execute(insert(ROWS), {"n": 1})
        await connection.commit()
    assert await count(database) == 2


async def test_health_needs_a_database_that_was_migrated(database: Database) -> None:
    assert "alembic_version" in await database.health()
    async with database.writing() as connection:
        await connection.execute(text("CREATE TABLE alembic_version (version_num TEXT)"))
        await connection.commit()
    assert await database.health() == "ok"


def test_a_url_is_shown_without_its_password() -> None:
    assert without_password("postgresql+asyncpg://u:s3cret@host/shop") == "postgresql+asyncpg://u:***@host/shop"
    assert without_password("sqlite+aiosqlite:///x.db") == "sqlite+aiosqlite:///x.db"

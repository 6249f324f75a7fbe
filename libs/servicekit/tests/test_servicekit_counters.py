"""Counters that triggers keep: what they add up to, and that no deadlock comes of them."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Connection, text

from servicekit.sql.database import Database
from servicekit.sql.schema import Counted, CountersTable, create_counters, drop_counters, new_metadata
from servicekit.testing.databases import NewDatabaseUrl
from servicekit.testing.migrations import table_names

BY_COLOUR = Counted("things", "things", ("colour",), "'things/' || {row}.colour")
WEIGHT = Counted("weight", "things", ("colour", "weight"), "'red weight'", "{row}.weight", "{row}.colour = 'red'")
COUNTED = (BY_COLOUR, WEIGHT)
COUNTERS = CountersTable(new_metadata())
MOVES = 30


def create(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE things (id INTEGER PRIMARY KEY, colour TEXT NOT NULL, weight INTEGER)"))
    connection.execute(text("INSERT INTO things VALUES (1, 'red', 10), (2, 'red', 5), (3, 'blue', 1)"))
    create_counters(connection, COUNTED)


async def execute(database: Database, *statements: str) -> None:
    async with database.writing() as connection:
        for statement in statements:
            await connection.execute(text(statement))
        await connection.commit()


async def values(database: Database) -> tuple[dict[str, int], int]:
    """Things by colour, and the weight of the red ones."""
    async with database.snapshot() as connection:
        by_colour = await COUNTERS.values(connection, "things/")
        return {name: value for name, value in by_colour.items() if value}, await COUNTERS.value(
            connection, "red weight"
        )


async def create_in(database: Database) -> None:
    async with database.migrating() as connection:
        await connection.run_sync(create)
        await connection.commit()


async def test_counters_follow_every_change_of_a_row_and_what_was_there_before(
    new_database_url: NewDatabaseUrl,
) -> None:
    database = Database(new_database_url("counted"))
    try:
        await create_in(database)
        assert await values(database) == ({"red": 2, "blue": 1}, 15)
        await execute(
            database, "INSERT INTO things VALUES (4, 'red', 100)", "UPDATE things SET weight = 7 WHERE id = 2"
        )
        assert await values(database) == ({"red": 3, "blue": 1}, 117)
        await execute(database, "UPDATE things SET colour = 'blue' WHERE id = 1", "DELETE FROM things WHERE id = 4")
        assert await values(database) == ({"red": 1, "blue": 2}, 7)
        async with database.writing() as connection:  # not committed
            await connection.execute(text("DELETE FROM things"))
        assert await values(database) == ({"red": 1, "blue": 2}, 7)
        await execute(database, "DELETE FROM things")
        assert await values(database) == ({}, 0)
        async with database.migrating() as connection:
            await connection.run_sync(drop_counters, COUNTED)
            await connection.commit()
        await execute(database, "INSERT INTO things VALUES (5, 'red', 3)")
        assert await table_names(database) == {"things"}
    finally:
        await database.dispose()


async def test_transactions_that_share_a_shard_do_not_wait_in_a_circle(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each changes the same two counters, half of them in the one order and half in the other."""
    monkeypatch.setattr("servicekit.sql.schema.SHARDS", 1)
    database = Database(new_database_url("counted"))
    try:
        await create_in(database)
        await execute(database, *(f"INSERT INTO things VALUES ({10 + n}, 'red', 1)" for n in range(MOVES)))
        await execute(database, *(f"INSERT INTO things VALUES ({100 + n}, 'blue', 1)" for n in range(MOVES)))
        to_blue = (f"UPDATE things SET colour = 'blue' WHERE id = {10 + number}" for number in range(MOVES))
        to_red = (f"UPDATE things SET colour = 'red' WHERE id = {100 + number}" for number in range(MOVES))
        await asyncio.gather(*(execute(database, one) for pair in zip(to_blue, to_red, strict=True) for one in pair))
        assert await values(database) == ({"red": 2 + MOVES, "blue": 1 + MOVES}, 15 + MOVES)
    finally:
        await database.dispose()

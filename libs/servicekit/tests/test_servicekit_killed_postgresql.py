"""A PostgreSQL server that dies inside a unit of work: the unit ends, and the next one works once it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import text

from servicekit.errors import StorageUnavailableError
from servicekit.sql.database import Database
from servicekit.testing.postgresql import PostgresServer

ANY = text("SELECT 1")

pytestmark = [pytest.mark.system, pytest.mark.needs("postgresql"), pytest.mark.processes]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def database(server: PostgresServer) -> AsyncIterator[Database]:
    database = Database(server.create_database("x"))
    yield database
    await database.dispose()


async def ask(database: Database) -> None:
    async with database.writing() as connection:
        await connection.execute(ANY)
        await connection.commit()


@pytest.mark.parametrize("kind", ["reading", "writing"])
async def test_a_unit_that_is_left_when_the_server_has_died_ends_without_a_word(
    server: PostgresServer, database: Database, kind: str
) -> None:
    units = database.snapshot if kind == "reading" else database.writing
    async with units() as connection:
        await connection.execute(ANY)
        await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await ask(database)


async def test_a_unit_in_which_the_server_dies_can_be_repeated(server: PostgresServer, database: Database) -> None:
    async def in_vain() -> None:
        async with database.writing() as connection:
            await connection.execute(ANY)
            await asyncio.to_thread(server.kill)
            await connection.execute(ANY)

    with pytest.raises(StorageUnavailableError):
        await in_vain()
    with pytest.raises(StorageUnavailableError):
        await ask(database)
    await asyncio.to_thread(server.start)
    await ask(database)

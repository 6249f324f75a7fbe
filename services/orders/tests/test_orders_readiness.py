"""Readiness of the database's schema: not migrated, half migrated, migrated, migrated by a later version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from orders.app import MIGRATIONS
from orders.testing import running_orders
from servicekit.sql.database import Database
from servicekit.testing.databases import NewDatabaseUrl
from servicekit.testing.migrations import later_than, migrate_to_a_later_one


@asynccontextmanager
async def database_at(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        await database.dispose()


async def test_a_schema_that_is_behind_is_told_with_what_it_has_to_be(new_database_url: NewDatabaseUrl) -> None:
    async with database_at(new_database_url("orders")) as database:
        health = MIGRATIONS.health_of(database)
        assert "alembic_version" in await health()  # nothing is there
        await MIGRATIONS.upgrade(database, "0001")
        assert (await health()).startswith("the schema is at 0001 and has to be at 00")
        await MIGRATIONS.upgrade(database)
        assert await health() == "ok"
        await MIGRATIONS.downgrade(database, "base")
        assert (await health()).startswith("the schema is at nothing and has to be at 00")


@pytest.mark.parametrize("works", [True, False])
async def test_a_schema_of_a_later_version_is_ready_when_it_says_that_it_works_with_this_one(
    new_database_url: NewDatabaseUrl, tmp_path: Path, works: bool
) -> None:
    """While versions are exchanged one process after the other, the earlier ones go on working."""
    url, later = new_database_url("orders"), later_than(MIGRATIONS.head)
    await migrate_to_a_later_one(MIGRATIONS, tmp_path / "later", url, MIGRATIONS.head if works else later)
    async with database_at(url) as database:
        told = await MIGRATIONS.health_of(database)()
    assert told == "ok" if works else told.startswith(f"the schema is at {later} and works with versions of the code")


async def test_readiness_names_the_database_when_its_tables_are_gone(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await MIGRATIONS.downgrade(orders.database, "base")
        async with orders.database.writing() as connection:
            await connection.execute(text("DROP TABLE alembic_version"))
            await connection.commit()
        ready: httpx.Response = await orders.http.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
        assert "alembic_version" in ready.json()["checks"]["database"]

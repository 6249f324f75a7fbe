"""What tests are given instead of migrations."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from servicekit.config import SQLITE_PREFIX
from servicekit.sql.database import Database
from servicekit.testing.migrations import migrate


class CountedMigrations:
    """Stands for Migrations: a table, and how often it was asked for."""

    def __init__(self) -> None:
        self.upgrades = 0

    async def upgrade(self, database: Database) -> None:
        self.upgrades += 1
        async with database.migrating() as connection:
            await connection.execute(text("CREATE TABLE IF NOT EXISTS orders (order_id TEXT PRIMARY KEY)"))
            await connection.commit()


@pytest.fixture
def migrations(monkeypatch: pytest.MonkeyPatch) -> CountedMigrations:
    monkeypatch.setattr("servicekit.testing.migrations._MADE", {})
    return CountedMigrations()


async def orders_of(url: str, migrations: CountedMigrations, new_order_id: str) -> list[str]:
    """The orders of the database, once it is migrated and has one more."""
    database = Database(url)
    try:
        await migrate(database, url, migrations)  # type: ignore[arg-type]
        async with database.writing() as connection:
            await connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": new_order_id})
            await connection.commit()
            return list((await connection.execute(text("SELECT order_id FROM orders ORDER BY 1"))).scalars())
    finally:
        await database.dispose()


async def test_new_files_are_alike_and_migrated_once(tmp_path: Path, migrations: CountedMigrations) -> None:
    for name in ("one", "two", "three"):
        assert await orders_of(f"{SQLITE_PREFIX}{tmp_path / name}.db", migrations, name) == [name]
    assert migrations.upgrades == 1


async def test_a_file_that_is_there_keeps_what_it_has_and_is_migrated_itself(
    tmp_path: Path, migrations: CountedMigrations
) -> None:
    url = f"{SQLITE_PREFIX}{tmp_path / 'orders.db'}"
    await orders_of(url, migrations, "a")
    assert await orders_of(url, migrations, "b") == ["a", "b"]
    assert migrations.upgrades == 2

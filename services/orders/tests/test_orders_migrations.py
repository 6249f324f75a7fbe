"""The migrations: from the empty database to the schema of the code, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError

from orders.adapters.tables import metadata
from orders.app import MIGRATIONS
from servicekit.adapters.database import Database
from servicekit.adapters.migrate import MigrationRefusedError
from servicekit.config import SQLITE_PREFIX


def differences(connection: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata))


def table_names(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


async def test_migrations_lead_to_the_schema_of_the_code_and_back_to_nothing(tmp_path: Path) -> None:
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'orders.db'}")
    try:
        await MIGRATIONS.upgrade(database)
        async with database.reading() as connection:
            assert await connection.run_sync(differences) == []
        await MIGRATIONS.upgrade(database)  # nothing left to do
        await MIGRATIONS.downgrade(database, "base")
        async with database.reading() as connection:
            assert await connection.run_sync(table_names) == {"alembic_version"}
        await MIGRATIONS.upgrade(database)
        async with database.reading() as connection:
            assert await connection.run_sync(differences) == []
    finally:
        await database.dispose()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO products VALUES ('p', 'n', -1, 'CNY', 1, 0, 0)",
        "INSERT INTO products VALUES ('p', 'n', 1, 'CNY', -1, 0, 0)",
        "INSERT INTO products VALUES ('p', 'n', 1, 'CNY', 1, -1, 0)",
        "INSERT INTO products VALUES ('p', 'n', 1, 'CNY', 1, 0, -1)",
        "INSERT INTO orders VALUES ('o', 'b', 'LOST', 1, 'CNY', 1, 2, NULL, NULL, NULL)",
        "INSERT INTO orders VALUES ('o', 'b', 'CLOSED', 1, 'CNY', 1, 2, NULL, NULL, NULL)",
        "INSERT INTO orders VALUES ('o', 'b', 'SHIPPED', 1, 'CNY', 1, 2, 3, 'p', 3)",
        "INSERT INTO orders VALUES ('o', 'b', 'SHIPPED', 1, 'CNY', 1, 2, NULL, NULL, NULL)",
        "INSERT INTO orders VALUES ('o', 'b', 'SHIPPED', 1, 'CNY', 1, 2, NULL, 'p', NULL)",
        "INSERT INTO orders VALUES ('o', 'b', 'CLOSED', 1, 'CNY', 1, 2, 3, 'p', 3)",
        "INSERT INTO refund_requests VALUES ('p', 'nobody', 1, 'CNY', 'order-closed', 1)",
        "INSERT INTO mq_transaction VALUES ('t', 'MAYBE', 1)",
        "INSERT INTO order_lines VALUES ('nobody', 1, 'nothing', 1, 1)",
        "INSERT INTO order_history VALUES (1, 'nobody', NULL, 'SHIPPED', 'paid', 1)",
    ],
)
async def test_the_schema_itself_refuses_what_must_never_be(tmp_path: Path, statement: str) -> None:
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'orders.db'}")
    try:
        await MIGRATIONS.upgrade(database)
        async with database.writing() as connection:
            with pytest.raises(IntegrityError):
                await connection.execute(text(statement))
    finally:
        await database.dispose()


async def test_an_outbox_with_unpublished_messages_is_not_thrown_away(tmp_path: Path) -> None:
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'orders.db'}")
    try:
        await MIGRATIONS.upgrade(database, "0001")
        async with database.writing() as connection:
            await connection.execute(
                text("INSERT INTO outbox VALUES (1, 'order-events', 'created', 'o', '{}', 1, NULL)")
            )
            await connection.commit()
        with pytest.raises(MigrationRefusedError, match="1 messages in the outbox are not published"):
            await MIGRATIONS.upgrade(database)
        async with database.writing() as connection:
            assert "outbox" in await connection.run_sync(table_names)
            await connection.execute(text("UPDATE outbox SET published_at_ms = 2"))
            await connection.commit()
        await MIGRATIONS.upgrade(database)
        async with database.reading() as connection:
            assert await connection.run_sync(differences) == []
    finally:
        await database.dispose()


async def test_sqlite_is_opened_so_that_a_commit_is_on_the_disk(tmp_path: Path) -> None:
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'orders.db'}")
    try:
        async with database.reading() as connection:
            found = [
                (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            ]
        assert found == ["wal", 2, 1, 5_000]
    finally:
        await database.dispose()

"""The migrations: from the empty database to the schema of the code, and back; and what the schema itself rejects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Select, text
from sqlalchemy.exc import IntegrityError

from sandbox_gateway import sql
from sandbox_gateway.app import MIGRATIONS
from sandbox_gateway.sql import metadata
from servicekit.config import SQLITE_PREFIX
from servicekit.sql.database import Database
from servicekit.testing.databases import NewDatabaseUrl
from servicekit.testing.migrations import broken_promises, checks_and_indexes, differences, table_names


async def test_migrations_lead_to_the_schema_of_the_code_and_back_to_nothing(
    new_database_url: NewDatabaseUrl,
) -> None:
    database = Database(new_database_url("gateway"))
    try:
        await MIGRATIONS.upgrade(database)
        assert await differences(database, metadata) == []
        await MIGRATIONS.upgrade(database)  # nothing left to do
        await MIGRATIONS.downgrade(database, "base")
        assert await table_names(database) == {"alembic_version"}
        await MIGRATIONS.upgrade(database)
        assert await differences(database, metadata) == []
    finally:
        await database.dispose()


async def test_migrations_keep_what_they_declare_to_work(new_database_url: NewDatabaseUrl) -> None:
    assert await broken_promises(new_database_url("gateway"), MIGRATIONS) == []


async def test_migrations_make_the_checks_and_the_partial_indexes_of_the_code(
    new_database_url: NewDatabaseUrl,
) -> None:
    migrated, created = Database(new_database_url("migrated")), Database(new_database_url("created"))
    try:
        await MIGRATIONS.upgrade(migrated)
        async with created.writing() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.commit()
        assert await checks_and_indexes(migrated) == await checks_and_indexes(created)
    finally:
        await migrated.dispose()
        await created.dispose()


CHARGE = "INSERT INTO charges VALUES ('{id}', 'o', {amount}, 'CNY', 'card', '{status}', 1, 1, {rest}, NULL)"
REFUND = "INSERT INTO refunds VALUES ('r', '{charge}', {amount}, 'CNY', '{status}', 1, 1, {at}, NULL)"
WEBHOOK = (
    "INSERT INTO webhooks VALUES ({id}, '{event}', '{charge}', NULL, 't', 'b', 1, {wanted}, {sent}, 0, 1, true,"
    " NULL, NULL)"
)


@pytest.mark.parametrize(
    "statement",
    [
        CHARGE.format(id="p", amount=0, status="pending", rest="NULL, NULL, 0"),
        CHARGE.format(id="p", amount=1, status="lost", rest="2, NULL, 0"),
        CHARGE.format(id="p", amount=1, status="pending", rest="2, NULL, 0"),
        CHARGE.format(id="p", amount=1, status="captured", rest="NULL, NULL, 0"),
        CHARGE.format(id="p", amount=1, status="captured", rest="2, 'why', 0"),
        CHARGE.format(id="p", amount=1, status="declined", rest="2, NULL, 0"),
        CHARGE.format(id="p", amount=1, status="declined", rest="2, 'why', 1"),
        CHARGE.format(id="p", amount=1, status="captured", rest="2, NULL, 2"),
        REFUND.format(charge="unknown", amount=1, status="pending", at="NULL"),
        REFUND.format(charge="there", amount=0, status="pending", at="NULL"),
        REFUND.format(charge="there", amount=1, status="pending", at="2"),
        REFUND.format(charge="there", amount=1, status="refunded", at="NULL"),
        WEBHOOK.format(id=2, event="e2", charge="unknown", wanted=1, sent=0),
        WEBHOOK.format(id=2, event="e1", charge="there", wanted=1, sent=0),
        WEBHOOK.format(id=2, event="e2", charge="there", wanted=1, sent=2),
    ],
)
async def test_the_schema_itself_rejects_what_must_never_be(tmp_path: Path, statement: str) -> None:
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'gateway.db'}")
    try:
        await MIGRATIONS.upgrade(database)
        async with database.writing() as connection:
            there = CHARGE.format(id="there", amount=9, status="captured", rest="2, NULL, 0")
            for legal in (there, WEBHOOK.format(id=1, event="e1", charge="there", wanted=1, sent=0)):
                await connection.execute(text(legal))
            with pytest.raises(IntegrityError):
                await connection.execute(text(statement))
    finally:
        await database.dispose()


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (sql._NEXT_DUE_CHARGE, "ix_charges_pending"),
        (sql._NEXT_DUE_REFUND, "ix_refunds_pending"),
        (sql._NEXT_DUE_WEBHOOK, "ix_webhooks_unsent"),
    ],
)
async def test_what_is_due_is_found_without_reading_what_is_done(
    tmp_path: Path, query: Select[Any], index: str
) -> None:
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'gateway.db'}")
    try:
        await MIGRATIONS.upgrade(database)
        async with database.snapshot() as connection:
            written_out = query.limit(1).compile(compile_kwargs={"literal_binds": True})
            plan = await connection.execute(text(f"EXPLAIN QUERY PLAN {written_out}"))
            assert index in str(plan.all())
    finally:
        await database.dispose()

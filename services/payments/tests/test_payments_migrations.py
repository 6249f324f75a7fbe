"""The migrations: from the empty database to the schema of the code, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.engine.interfaces import ReflectedIndex
from sqlalchemy.exc import IntegrityError

from payments.adapters.tables import metadata
from payments.app import MIGRATIONS
from servicekit.adapters.database import Database
from servicekit.config import SQLITE_PREFIX


def differences(connection: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata))


def schema(connection: Connection) -> dict[str, tuple[object, ...]]:
    """What alembic does not compare: checks, and the conditions of indexes."""
    inspector = inspect(connection)

    def conditions(index: ReflectedIndex) -> list[str]:
        return [str(condition) for condition in index.get("dialect_options", {}).values()]

    return {
        table: (
            sorted(str(check["sqltext"]) for check in inspector.get_check_constraints(table)),
            sorted((str(index["name"]), conditions(index)) for index in inspector.get_indexes(table)),
        )
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


def table_names(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


async def test_migrations_lead_to_the_schema_of_the_code_and_back_to_nothing(tmp_path: Path) -> None:
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'payments.db'}")
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


async def test_migrations_make_the_checks_and_the_partial_indexes_of_the_code(tmp_path: Path) -> None:
    migrated = Database(f"{SQLITE_PREFIX}{tmp_path / 'migrated.db'}")
    created = Database(f"{SQLITE_PREFIX}{tmp_path / 'created.db'}")
    try:
        await MIGRATIONS.upgrade(migrated)
        async with created.writing() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.commit()
        async with migrated.reading() as one, created.reading() as other:
            assert await one.run_sync(schema) == await other.run_sync(schema)
    finally:
        await migrated.dispose()
        await created.dispose()


PAYMENT = "INSERT INTO payments VALUES ('{id}', '{order}', 'b', {amount}, 'CNY', 'card', '{status}', 1, {rest})"


def payment_row(status: str, rest: str, *, payment_id: str = "p", order_id: str = "o", amount_minor: int = 1) -> str:
    return PAYMENT.format(id=payment_id, order=order_id, amount=amount_minor, status=status, rest=rest)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO payable_orders VALUES ('o', 'LOST', 'b', 1, 'CNY', 1)",
        "INSERT INTO payable_orders VALUES ('o', 'OPEN', NULL, NULL, NULL, NULL)",
        "INSERT INTO payable_orders VALUES ('o', 'PAID', 'b', NULL, 'CNY', 1)",
        payment_row("LOST", "NULL, NULL, NULL"),
        payment_row("CREATED", "NULL, NULL, NULL", amount_minor=0),
        payment_row("CREATED", "2, NULL, NULL"),
        payment_row("CAPTURED", "NULL, NULL, NULL"),
        payment_row("CAPTURED", "2, 3, NULL"),
        payment_row("REFUNDED", "2, NULL, NULL"),
        payment_row("DECLINED", "NULL, NULL, NULL"),
        "INSERT INTO payment_history VALUES (1, 'nobody', NULL, 'CREATED', 'requested', 1)",
        "INSERT INTO refunds VALUES ('nobody', 'r', 1, 'CNY', 'why', 1)",
        "INSERT INTO mq_transaction VALUES ('t', 'PERHAPS', 1)",
    ],
)
async def test_the_schema_itself_refuses_what_must_never_be(tmp_path: Path, statement: str) -> None:
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'payments.db'}")
    try:
        await MIGRATIONS.upgrade(database)
        async with database.writing() as connection:
            with pytest.raises(IntegrityError):
                await connection.execute(text(statement))
    finally:
        await database.dispose()


@pytest.mark.parametrize("first", ["CREATED", "CAPTURED", "REFUNDED", "DECLINED"])
async def test_the_schema_itself_refuses_a_second_payment_of_an_order_unless_the_first_was_declined(
    tmp_path: Path, first: str
) -> None:
    rest = {"CREATED": "NULL, NULL, NULL", "CAPTURED": "2, NULL, NULL", "REFUNDED": "2, 3, NULL"}
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'payments.db'}")
    second = text(payment_row("CREATED", "NULL, NULL, NULL", payment_id="p2"))
    try:
        await MIGRATIONS.upgrade(database)
        async with database.writing() as connection:
            await connection.execute(text(payment_row(first, rest.get(first, "NULL, NULL, 'no'"), payment_id="p1")))
            if first == "DECLINED":
                await connection.execute(second)
            else:
                with pytest.raises(IntegrityError):
                    await connection.execute(second)
    finally:
        await database.dispose()

"""How a database looks that migrations have made, for the services' tests."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData, inspect
from sqlalchemy.engine.interfaces import ReflectedIndex

from servicekit.adapters.database import Database


async def differences(database: Database, metadata: MetaData) -> list[object]:
    """What alembic finds between the database and the schema of the code."""

    def compare(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata))

    async with database.reading() as connection:
        return await connection.run_sync(compare)


async def table_names(database: Database) -> set[str]:
    async with database.reading() as connection:
        return await connection.run_sync(lambda connection: set(inspect(connection).get_table_names()))


async def checks_and_indexes(database: Database) -> dict[str, tuple[object, ...]]:
    """What alembic does not compare: the checks, and the conditions of indexes, by table."""
    async with database.reading() as connection:
        return await connection.run_sync(_checks_and_indexes)


def _checks_and_indexes(connection: Connection) -> dict[str, tuple[object, ...]]:
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

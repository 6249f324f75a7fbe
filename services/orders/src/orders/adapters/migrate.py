"""Brings a database to the schema of this version. The migrations lie inside the package, so that no file is needed."""

from __future__ import annotations

from collections.abc import Callable

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from orders.adapters.database import Database

HEAD = "head"


async def upgrade(database: Database) -> None:
    """Up to the newest version, in one transaction. Raises StorageUnavailableError."""
    async with database.writing() as connection:
        await connection.run_sync(_run, command.upgrade, HEAD)
        await connection.commit()


async def downgrade(database: Database, revision: str) -> None:
    """Down to `revision`; `base` is the empty database. Raises StorageUnavailableError."""
    async with database.writing() as connection:
        await connection.run_sync(_run, command.downgrade, revision)
        await connection.commit()


def _run(connection: Connection, action: Callable[[Config, str], None], revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", "orders:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    action(config, revision)

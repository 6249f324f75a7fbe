"""Brings a database to the schema of a service's version. The migrations lie inside the service's package, so that no
file is needed beside it; their env.py runs them on the connection in `context.config.attributes["connection"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from servicekit.adapters.database import Database
from servicekit.errors import ServiceError

HEAD = "head"


class MigrationRefusedError(ServiceError):
    """The database cannot be brought to this version as it is; the sentence says what has to be done first."""


@dataclass(frozen=True, slots=True)
class Migrations:
    """The migrations at `location`, a package and a folder in it such as `orders:migrations`."""

    location: str

    async def upgrade(self, database: Database, revision: str = HEAD) -> None:
        """Up to `revision`, in one transaction. Raises StorageUnavailableError, MigrationRefusedError."""
        await self._run(database, command.upgrade, revision)

    async def downgrade(self, database: Database, revision: str) -> None:
        """Down to `revision`; `base` is the empty database. Raises StorageUnavailableError."""
        await self._run(database, command.downgrade, revision)

    async def _run(self, database: Database, action: Callable[[Config, str], None], revision: str) -> None:
        def run(connection: Connection) -> None:
            config = Config()
            config.set_main_option("script_location", self.location)
            config.set_main_option("path_separator", "os")
            config.attributes["connection"] = connection
            action(config, revision)

        async with database.writing() as connection:
            await connection.run_sync(run)
            await connection.commit()

"""Brings a database to the schema of a service's version. The migrations lie inside the service's package, so that no
file is needed beside it; their env.py runs them on the connection in `context.config.attributes["connection"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from servicekit.adapters.database import Database
from servicekit.adapters.storage_errors import unavailable
from servicekit.errors import ServiceError, StorageUnavailableError
from servicekit.health import OK, HealthCheck

HEAD = "head"

_VERSION = text("SELECT version_num FROM alembic_version")


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

    def health_of(self, database: Database) -> HealthCheck:
        """A check of readiness: whether the database has this version's schema, or one of a later version."""
        script = ScriptDirectory.from_config(self._config())
        head = script.get_current_head()
        earlier = {one.revision for one in script.walk_revisions()} - {head}

        async def health() -> str:
            try:
                async with database.reading() as connection:
                    found = (await connection.execute(_VERSION)).scalars().all()
            except StorageUnavailableError as error:
                return str(error)
            except DBAPIError as error:  # PostgreSQL answers, and has no such table
                return str(unavailable(error))
            if not found or set(found) & earlier:
                return f"the schema is at {found[0] if found else 'nothing'} and has to be at {head}; run migrate"
            return OK  # what is not known is later: whoever made it keeps it fit for this version

        return health

    def _config(self) -> Config:
        config = Config()
        config.set_main_option("script_location", self.location)
        config.set_main_option("path_separator", "os")
        return config

    async def _run(self, database: Database, action: Callable[[Config, str], None], revision: str) -> None:
        def run(connection: Connection) -> None:
            config = self._config()
            config.attributes["connection"] = connection
            action(config, revision)

        async with database.migrating() as connection:
            await connection.run_sync(run)
            await connection.commit()

"""Brings a database to the schema of a service's version. The migrations lie inside the service's package, so that no
file is needed beside it; their env.py runs them on the connection in `context.config.attributes["connection"]`.

A migration may say `oldest_code = "0007"`: code whose own newest migration is 0007, or a later one, works with the
schema that it makes. Without it no older code does. The database keeps the word of its newest migration beside its
revision, in alembic_version.oldest_code, so that code which does not know the migration can read it: that code starts,
and leaves the schema as it is (docs/releases.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from servicekit.adapters.database import Database
from servicekit.adapters.storage_errors import unavailable
from servicekit.errors import ServiceError, StorageUnavailableError
from servicekit.health import OK, HealthCheck

HEAD = "head"
OLDEST_CODE = "oldest_code"

_VERSION = text("SELECT version_num FROM alembic_version")
_ADD_OLDEST_CODE = text("ALTER TABLE alembic_version ADD COLUMN oldest_code VARCHAR(32)")
_OLDEST_CODE = text("SELECT oldest_code FROM alembic_version")
_SET_OLDEST_CODE = text(
    "UPDATE alembic_version SET oldest_code = :oldest WHERE oldest_code IS NULL OR oldest_code <> :oldest"
)

log = structlog.get_logger(__name__)


class MigrationRefusedError(ServiceError):
    """The database cannot be brought to this version as it is; the sentence says what has to be done first."""


@dataclass(frozen=True, slots=True)
class Migrations:
    """The migrations at `location`, a package and a folder in it such as `orders:migrations`."""

    location: str

    @property
    def head(self) -> str:
        """The newest revision, which is that of the code. Raises ValueError without any."""
        known = self._known()
        if not known:
            raise ValueError(f"there are no migrations at {self.location}")
        return known[0]

    async def upgrade(self, database: Database, revision: str = HEAD) -> None:
        """Up to `revision`, in one transaction; a later schema that works with this version is left as it is.

        Raises StorageUnavailableError, and MigrationRefusedError for a later schema that does not.
        """

        def upgrade(connection: Connection) -> None:
            found = _revision(connection)
            if found is None or found in (known := self._known()):
                self._run(connection, command.upgrade, revision)
                return
            judgement = _judge_later(connection, found, known)
            if judgement != OK:
                raise MigrationRefusedError(judgement)
            log.info("the schema is of a later version and works with this one", revision=found)

        await _commit(database, upgrade)

    async def downgrade(self, database: Database, revision: str) -> None:
        """Down to `revision`; `base` is the empty database. Raises StorageUnavailableError, MigrationRefusedError."""
        await _commit(database, lambda connection: self._run(connection, command.downgrade, revision))

    def oldest_code_of(self, revision: str) -> str:
        """The oldest code that works with the schema of this revision, as its migration says."""
        return str(getattr(self._script().get_revision(revision).module, OLDEST_CODE, revision))

    def health_of(self, database: Database) -> HealthCheck:
        """A check of readiness: whether the database has this version's schema, or a later one that works with it."""
        known = self._known()
        head = next(iter(known), None)

        async def health() -> str:
            try:
                async with database.reading() as connection:
                    found = (await connection.execute(_VERSION)).scalar()
                    if found is not None and found not in known:
                        return await connection.run_sync(_judge_later, found, known)
            except StorageUnavailableError as error:
                return str(error)
            except DBAPIError as error:  # PostgreSQL answers, and has no such table
                return str(unavailable(error))
            if found != head:
                return f"the schema is at {found or 'nothing'} and has to be at {head}; run migrate"
            return OK

        return health

    def _known(self) -> list[str]:
        """The revisions that this version knows, the newest first."""
        return [one.revision for one in self._script().walk_revisions()]

    def _script(self) -> ScriptDirectory:
        return ScriptDirectory.from_config(self._config())

    def _config(self) -> Config:
        config = Config()
        config.set_main_option("script_location", self.location)
        config.set_main_option("path_separator", "os")
        return config

    def _run(self, connection: Connection, action: Callable[[Config, str], None], revision: str) -> None:
        config = self._config()
        config.attributes["connection"] = connection
        action(config, revision)
        if not _has_oldest_code(connection):
            connection.execute(_ADD_OLDEST_CODE)
        found = _revision(connection)
        if found is not None:
            connection.execute(_SET_OLDEST_CODE, {"oldest": self.oldest_code_of(found)})


async def _commit(database: Database, change: Callable[[Connection], None]) -> None:
    async with database.migrating() as connection:
        await connection.run_sync(change)
        await connection.commit()


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _has_oldest_code(connection: Connection) -> bool:
    return OLDEST_CODE in {column["name"] for column in inspect(connection).get_columns("alembic_version")}


def _judge_later(connection: Connection, found: str, known: list[str]) -> str:
    """ "ok" when the schema of `found`, which is not `known`, works with the code of `known[0]`, or what is wrong."""
    oldest = connection.execute(_OLDEST_CODE).scalar_one() if _has_oldest_code(connection) else None
    if oldest in known:
        return OK
    return (
        f"the schema is at {found} and works with versions of the code from {oldest or found} on; this one is"
        f" {known[0] if known else 'without any'}: start a later version"
    )

"""The schema of a service's database: names of constraints, counters, and migrations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import structlog
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    bindparam,
    func,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from servicekit.errors import ServiceError, StorageUnavailableError
from servicekit.monitoring import OK, HealthCheck
from servicekit.sql.backends import unavailable
from servicekit.sql.database import Database

# SQLite numbers rows by itself only for a column of exactly the type INTEGER.
ROW_ID = BigInteger().with_variant(Integer(), "sqlite")


def new_metadata() -> MetaData:
    """Metadata in which every constraint has a name, so that migrations can speak of it."""
    return MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        }
    )


NAME_LENGTH_MAX = 64
SHARDS = 64  # more than the connections of some instances; process ids of a server's connections follow each other
SHARD_LOCK = 0x436F_756E  # any number that no other program uses for two-part advisory locks in this database

E = TypeVar("E", bound=StrEnum)

_CREATE = (
    "CREATE TABLE counters (name VARCHAR(64) NOT NULL, shard INTEGER NOT NULL, value BIGINT NOT NULL,"
    " CONSTRAINT pk_counters PRIMARY KEY (name, shard))"
)
_ADD = (
    "INSERT INTO counters (name, shard, value) SELECT {name}, {shard}, {sign}({value}) WHERE {where}"
    " ON CONFLICT (name, shard) DO UPDATE SET value = counters.value + excluded.value;"
)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the rows of a table add to counters, for sums that would otherwise read every row.

    `what` names the triggers. `name`, `value` and `where` are SQL over one row, whose columns are written
    `{row}.column`; they use no columns but `columns`.

    Triggers keep them in the transaction that changes a row, also when an instance of the version before or an operator
    with SQL changes it. A migration makes them; its `Counted` says what is counted.

    Invariant: at any moment the value of a counter, summed over its shards, is what its rows add up to.

    On PostgreSQL transactions add to the shard of their connection, when they commit: two of them wait for each other
    only if their connections share a shard, and only for a commit. The shard's lock comes last and alone, so that no
    circle of waiting goes through it. SQLite has one writer, and one shard.
    """

    what: str
    table: str
    columns: tuple[str, ...]
    name: str
    value: str = "1"
    where: str = "TRUE"

    def begin(self, connection: Connection) -> None:
        """Count from now on, and what there is. On PostgreSQL writes to the table wait until the migration ends."""
        if connection.dialect.name == "postgresql":
            self._begin_on_postgresql(connection)
        else:
            self._begin_on_sqlite(connection)
        name, value, where = (part.format(row=self.table) for part in (self.name, self.value, self.where))
        found = f"SELECT {name}, 0, SUM({value}) FROM {self.table} WHERE {where} GROUP BY 1"  # noqa: S608 - a migration's
        _run(connection, f"INSERT INTO counters (name, shard, value) {found}")

    def end(self, connection: Connection) -> None:
        """Count no more."""
        if connection.dialect.name == "postgresql":
            _run(connection, f"DROP TRIGGER count_{self.what} ON {self.table}")
            _run(connection, f"DROP FUNCTION count_{self.what}()")
            return
        for event in ("insert", "update", "delete"):
            _run(connection, f"DROP TRIGGER count_{self.what}_{event}")

    def _begin_on_postgresql(self, connection: Connection) -> None:
        changed = " OR ".join(f"OLD.{column} IS DISTINCT FROM NEW.{column}" for column in self.columns)
        function = (
            f"CREATE FUNCTION count_{self.what}() RETURNS trigger LANGUAGE plpgsql AS $$"
            f" DECLARE its_shard integer = pg_backend_pid() % {SHARDS};"
            " BEGIN"
            f" IF TG_OP = 'UPDATE' THEN IF NOT ({changed}) THEN RETURN NULL; END IF; END IF;"
            f" PERFORM pg_advisory_xact_lock({SHARD_LOCK}, its_shard);"
            f" IF TG_OP <> 'INSERT' THEN {self._add('OLD', '-', 'its_shard')} END IF;"
            f" IF TG_OP <> 'DELETE' THEN {self._add('NEW', '', 'its_shard')} END IF;"
            " RETURN NULL; END $$"
        )
        _run(connection, function)
        trigger = (
            f"CREATE CONSTRAINT TRIGGER count_{self.what}"
            f" AFTER INSERT OR DELETE OR UPDATE OF {', '.join(self.columns)} ON {self.table}"
            f" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_{self.what}()"
        )
        _run(connection, trigger)

    def _begin_on_sqlite(self, connection: Connection) -> None:
        less, more = self._add("OLD", "-", "0"), self._add("NEW", "", "0")
        changed = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in self.columns)
        update = f"UPDATE OF {', '.join(self.columns)} ON {self.table} WHEN {changed}"
        for event, when, body in (
            ("insert", f"INSERT ON {self.table}", more),
            ("update", update, f"{less} {more}"),
            ("delete", f"DELETE ON {self.table}", less),
        ):
            _run(connection, f"CREATE TRIGGER count_{self.what}_{event} AFTER {when} BEGIN {body} END")

    def _add(self, row: str, sign: str, shard: str) -> str:
        name, value, where = (part.format(row=row) for part in (self.name, self.value, self.where))
        return _ADD.format(name=name, shard=shard, sign=sign, value=value, where=where)


def create_counters(connection: Connection, counted: Iterable[Counted]) -> None:
    """The table, and the triggers that fill it: for a migration."""
    _run(connection, _CREATE)
    for one in counted:
        one.begin(connection)


def drop_counters(connection: Connection, counted: Iterable[Counted]) -> None:
    """The way back: nothing is lost, because the version before counts the rows."""
    for one in counted:
        one.end(connection)
    _run(connection, "DROP TABLE counters")


def _run(connection: Connection, statement: str) -> None:
    connection.execute(text(statement))


class CountersTable:
    """The table `counters` of a service, and how it is read."""

    def __init__(self, metadata: MetaData) -> None:
        self.table = Table(
            "counters",
            metadata,
            Column("name", String(NAME_LENGTH_MAX), primary_key=True),
            Column("shard", Integer, primary_key=True, autoincrement=False),
            Column("value", BigInteger, nullable=False),
        )
        columns = self.table.c
        self._value = select(func.sum(columns.value)).where(columns.name == bindparam("wanted_name"))
        self._values = (
            select(columns.name, func.sum(columns.value))
            .where(columns.name.startswith(bindparam("prefix")))
            .group_by(columns.name)
        )

    async def value(self, connection: AsyncConnection, name: str) -> int:
        """One counter; one that has never counted anything is 0."""
        return int((await connection.execute(self._value, {"wanted_name": name})).scalar_one() or 0)

    async def values(self, connection: AsyncConnection, prefix: str) -> dict[str, int]:
        """The counters whose names begin so, by the rest of it; one that has never counted anything is left out."""
        rows = await connection.execute(self._values, {"prefix": prefix})
        return {name.removeprefix(prefix): int(value) for name, value in rows}

    async def of_each(self, connection: AsyncConnection, prefix: str, kinds: type[E]) -> dict[E, int]:
        """The same for every member of an enumeration; one that has never counted anything is 0."""
        counts = await self.values(connection, prefix)
        return {kind: counts.get(kind, 0) for kind in kinds}


HEAD = "head"
OLDEST_CODE = "oldest_code"

_VERSION = text("SELECT version_num FROM alembic_version")
_ADD_OLDEST_CODE = text("ALTER TABLE alembic_version ADD COLUMN oldest_code VARCHAR(32)")
_OLDEST_CODE = text("SELECT oldest_code FROM alembic_version")
_SET_OLDEST_CODE = text(
    "UPDATE alembic_version SET oldest_code = :oldest WHERE oldest_code IS NULL OR oldest_code <> :oldest"
)

log = structlog.get_logger(__name__)


class MigrationRejectedError(ServiceError):
    """The database cannot be brought to this version as it is; the sentence says what has to be done first."""


@dataclass(frozen=True, slots=True)
class Migrations:
    """The migrations at `location`, a package and a folder in it such as `orders:migrations`.

    They lie inside the service's package, so that no file is needed beside it; their env.py runs them on the connection
    in `context.config.attributes["connection"]`.

    A migration may say `oldest_code = "0007"`: code whose own newest migration is 0007, or a later one, works with the
    schema that it makes. Without it no older code does. The database keeps `oldest_code` of its newest migration beside
    its revision, in alembic_version.oldest_code, so that code which does not know the migration can read it: that code
    starts, and leaves the schema as it is (docs/guides/releases.md).
    """

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

        Raises StorageUnavailableError, and MigrationRejectedError for a later schema that does not.
        """

        def upgrade(connection: Connection) -> None:
            found = _revision(connection)
            if found is None or found in (known := self._known()):
                self._run(connection, command.upgrade, revision)
                return
            judgement = _judge_later(connection, found, known)
            if judgement != OK:
                raise MigrationRejectedError(judgement)
            log.info("the schema is of a later version and works with this one", revision=found)

        await _commit(database, upgrade)

    async def downgrade(self, database: Database, revision: str) -> None:
        """Down to `revision`; `base` is the empty database. Raises StorageUnavailableError, MigrationRejectedError."""
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
                async with database.snapshot() as connection:
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

"""Counters beside the tables that they count, for sums that would otherwise read every row.

Triggers keep them in the transaction that changes a row, whoever changes it: an instance of the version before, and an
operator with SQL, too. A migration makes them; its `Counted` says what is counted.

Invariant: at any moment the value of a counter, summed over its shards, is what its rows add up to.

On PostgreSQL transactions add to the shard of their connection, when they commit: two of them wait for each other only
if their connections share a shard, and only for a commit. The shard's lock comes last and alone, so that no circle of
waiting goes through it. SQLite has one writer, and one shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table, bindparam, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

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
    """What the rows of a table add to counters; `what` names the triggers.

    `name`, `value` and `where` are SQL over one row, whose columns are written `{row}.column`; they use no columns but
    `columns`.
    """

    what: str
    table: str
    columns: tuple[str, ...]
    name: str
    value: str = "1"
    where: str = "TRUE"

    def begin(self, connection: Connection) -> None:
        """Count from now on, and what there is. On PostgreSQL nobody writes to the table until the migration ends."""
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

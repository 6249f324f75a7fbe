"""Databases that a service's migrations have made, how they look, and migrations of the next version."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import as_file, files
from pathlib import Path
from typing import TypeAlias

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData, inspect, make_url
from sqlalchemy.engine.interfaces import ReflectedIndex

from servicekit.config import SQLITE_PREFIX
from servicekit.sql.database import Database
from servicekit.sql.schema import Migrations

# By table: the kind of each column, and what is unique in it.
_Schema: TypeAlias = dict[str, dict[str, str]]

_LATER = """
from alembic import op

revision, down_revision, branch_labels, depends_on = "{revision}", "{head}", None, None
{declaration}


def upgrade():
    op.execute({statement!r})
"""


def with_a_later_one(migrations: Migrations, folder: Path, statement: str, oldest_code: str | None) -> Migrations:
    """What the next version has, in `folder`: these migrations of a package, and one more that runs `statement`.

    It declares that the code of `oldest_code` and later works with its schema, or nothing.
    """
    package, _, name = migrations.location.partition(":")
    with as_file(files(package) / name) as source:
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    head = migrations.head
    declaration = "" if oldest_code is None else f"oldest_code = {oldest_code!r}"
    text = _LATER.format(revision=later_than(head), head=head, declaration=declaration, statement=statement)
    (folder / "versions" / f"v{later_than(head)}_later.py").write_text(text, encoding="utf-8")
    return Migrations(str(folder))


async def migrate_alone(url: str, migrations: Migrations) -> None:
    """Bring the database at `url` to the newest of `migrations`, as the command `migrate` does."""
    database = Database(url)
    try:
        await migrations.upgrade(database)
    finally:
        await database.dispose()


async def migrate_to_a_later_one(migrations: Migrations, folder: Path, url: str, oldest_code: str | None) -> None:
    """Bring the database at `url` to a schema that the next version makes, with a table that is new."""
    await migrate_alone(url, with_a_later_one(migrations, folder, "CREATE TABLE later (id INTEGER)", oldest_code))


def later_than(revision: str) -> str:
    """The revision after this one."""
    return f"{int(revision) + 1:04}"


async def broken_promises(url: str, migrations: Migrations) -> list[str]:
    """What migrations take from code that they declare to work; brings the empty database up one revision at a time.

    Compared are columns and what is unique; whether older code understands the rows is for people to judge.
    """
    database = Database(url)
    schemas: dict[str, _Schema] = {}
    broken, before = [], ""
    try:
        for number in range(1, int(migrations.head) + 1):
            revision = f"{number:04}"
            await migrations.upgrade(database, revision)
            async with database.snapshot() as connection:
                schemas[revision] = await connection.run_sync(_schema)
            oldest = migrations.oldest_code_of(revision)
            broken += [f"{revision}: {what}" for what in _taken(schemas[oldest], schemas[revision])]
            if oldest < before:
                broken.append(f"{revision}: works with {oldest}, and the schema before only with {before}")
            before = oldest
    finally:
        await database.dispose()
    return broken


def _schema(connection: Connection) -> _Schema:
    inspector = inspect(connection)
    schema: _Schema = {}
    for table in inspector.get_table_names():
        schema[table] = columns = {}
        for column in inspector.get_columns(table):
            is_needed = not column["nullable"] and column["default"] is None
            columns[column["name"]] = f"{column['type']}{' NOT NULL' * is_needed}"
        for index in inspector.get_indexes(table):
            if index["unique"]:
                columns[f"UNIQUE {index['column_names']}"] = " NOT NULL"
    return schema


def _taken(before: _Schema, after: _Schema) -> Iterator[str]:
    for table, columns in before.items():
        now = after.get(table, {})
        for name, kind in columns.items():
            if now.get(name, "gone") not in (kind, kind.removesuffix(" NOT NULL")):
                yield f"{table}.{name} was {kind} and is {now.get(name, 'gone')}"
        for name in now.keys() - columns.keys():
            if now[name].endswith(" NOT NULL"):
                yield f"{table}.{name} is new and asks something of every row"


async def differences(database: Database, metadata: MetaData) -> list[object]:
    """What alembic finds between the database and the schema of the code."""

    def compare(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata))

    async with database.snapshot() as connection:
        return await connection.run_sync(compare)


async def table_names(database: Database) -> set[str]:
    async with database.snapshot() as connection:
        return await connection.run_sync(lambda connection: set(inspect(connection).get_table_names()))


async def checks_and_indexes(database: Database) -> dict[str, tuple[object, ...]]:
    """What alembic does not compare: the checks, and the conditions of indexes, by table."""
    async with database.snapshot() as connection:
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


_MADE: dict[Migrations, sqlite3.Connection] = {}  # copies in memory


async def migrate(database: Database, url: str, migrations: Migrations) -> None:
    """Bring the database at `url`, of which nothing is open yet, to the newest schema. Raises what `upgrade` raises.

    Invariant: a new SQLite file gets, page by page, what the migrations have made of the first one in this process.
    Every other database is migrated itself, as is a file that is there already.
    """
    path = make_url(url).database if url.startswith(SQLITE_PREFIX) else None
    if path is None or _is_there(path):
        await migrations.upgrade(database)
    elif migrations in _MADE:
        with closing(sqlite3.connect(path)) as file:
            file.execute("PRAGMA synchronous=OFF")  # no test asks what a power cut leaves of an empty database
            _MADE[migrations].backup(file)
    else:
        await migrations.upgrade(database)
        with closing(sqlite3.connect(path)) as file:
            copy = sqlite3.connect(":memory:")
            file.backup(copy)
        _MADE[migrations] = copy


def _is_there(path: str) -> bool:
    return Path(path).exists()

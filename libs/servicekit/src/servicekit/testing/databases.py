"""Databases for tests, as a plugin of pytest: a test that asks for `new_database_url` runs on each kind of database.

    async def test_it(new_database_url: NewDatabaseUrl) -> None:
        database = Database(new_database_url("orders"))

With SQLite the test always runs; with PostgreSQL it is a test of the system: it runs with `--system`, and where
PostgreSQL is installed. One server serves the whole run; a database belongs to one test, and is empty when it begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from servicekit.config import SQLITE_PREFIX
from servicekit.testing.postgresql import PostgresServer

# Takes a name, and returns a URL; the same name within a test is the same database.
NewDatabaseUrl: TypeAlias = Callable[[str], str]

POSTGRESQL = pytest.param("postgresql", marks=[pytest.mark.system, pytest.mark.needs("postgresql")])


class DatabasesOfTests:
    """Databases on one server; those that a test gives back are emptied and used again."""

    def __init__(self, server: PostgresServer) -> None:
        """The server runs, and stays as it is."""
        self._server = server
        self._numbers = itertools.count(1)
        self._free: list[str] = []

    @contextmanager
    def of_one_test(self) -> Iterator[NewDatabaseUrl]:
        """Databases until the end of the context."""
        taken: dict[str, str] = {}

        def new_database_url(name: str) -> str:
            if name not in taken:
                taken[name] = self._take()
            return self._server.url(taken[name])

        try:
            yield new_database_url
        finally:
            for database in taken.values():
                self._server.empty_database(database)
                self._free.append(database)

    def _take(self) -> str:
        if self._free:
            return self._free.pop()
        name = f"test_{next(self._numbers)}"
        self._server.create_database(name)
        return name


@pytest.fixture(scope="session")
def databases_of_tests() -> Iterator[DatabasesOfTests]:
    """One PostgreSQL server for all tests of this process."""
    with PostgresServer() as server:
        yield DatabasesOfTests(server)


@pytest.fixture(params=["sqlite", POSTGRESQL])
def new_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewDatabaseUrl]:
    """The test runs once with SQLite, in `tmp_path`, and once with PostgreSQL."""
    if request.param == "sqlite":
        yield lambda name: f"{SQLITE_PREFIX}{tmp_path / name}.db"
        return
    yield request.getfixturevalue("new_postgresql_url")


@pytest.fixture
def new_postgresql_url(databases_of_tests: DatabasesOfTests) -> Iterator[NewDatabaseUrl]:
    """For tests of what is PostgreSQL's own; they need the marks of POSTGRESQL."""
    with databases_of_tests.of_one_test() as new_url:
        yield new_url

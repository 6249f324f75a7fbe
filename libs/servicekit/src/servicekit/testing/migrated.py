"""Databases that a service's migrations have made, without running them for every test.

Invariant: a new SQLite file gets, page by page, what the migrations have made of the first one in this process. Every
other database is migrated itself, as is a file that is there already.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import make_url

from servicekit.adapters.database import Database
from servicekit.adapters.migrate import Migrations
from servicekit.config import SQLITE_PREFIX

_MADE: dict[Migrations, sqlite3.Connection] = {}  # copies in memory


async def migrate(database: Database, url: str, migrations: Migrations) -> None:
    """Bring the database at `url`, of which nothing is open yet, to the newest schema. Raises what `upgrade` raises."""
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

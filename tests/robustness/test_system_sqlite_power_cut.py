"""A commit of a service's SQLite outlives a power cut (bug zoo 34)."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from ext4_image import Ext4Image
from sqlalchemy import text

from servicekit.config import SQLITE_PREFIX
from servicekit.sql.database import Database

pytestmark = pytest.mark.needs("loop device")

COMMITS = 20


async def commit_and_cut(image: Ext4Image) -> None:
    """Commit so many units one by one, and cut the power behind the last answer."""
    database = Database(f"{SQLITE_PREFIX}{image.root / 'shop.db'}")
    async with database.writing() as connection:
        await connection.execute(text("CREATE TABLE orders (number INTEGER PRIMARY KEY)"))
        await connection.commit()
    for number in range(COMMITS):
        async with database.writing() as connection:
            await connection.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
            await connection.commit()
    image.cut_power()
    await database.dispose()


def test_every_committed_unit_is_there_after_a_power_cut(tmp_path: Path) -> None:
    with Ext4Image(tmp_path / "image") as image:
        asyncio.run(commit_and_cut(image))
        image.unmount()
        image.mount()
        with closing(sqlite3.connect(image.root / "shop.db")) as connection:
            assert connection.execute("SELECT count(*) FROM orders").fetchone() == (COMMITS,)
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)

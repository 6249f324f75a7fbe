"""Databases for tests of `mqclient.sqlalchemy`: SQLite in each of the two ways that applications open it, PostgreSQL.

Not imported by `mqclient.testing`: needs SQLAlchemy, aiosqlite and asyncpg.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

LOCK_TIMEOUT_S = 0.05  # a database waits for real


def open_sqlite(path: Path, *, strict: bool = True, lock_timeout_s: float = LOCK_TIMEOUT_S) -> AsyncEngine:
    """`strict` as orders opens it, BEGIN IMMEDIATE and all; otherwise as the driver does by itself."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": lock_timeout_s})
    if strict:
        event.listen(engine.sync_engine, "connect", _no_driver_transactions)
        event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def open_postgresql(url: str, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> AsyncEngine:
    """`url` is that of asyncpg."""
    settings = {"lock_timeout": str(int(lock_timeout_s * 1000))}
    return create_async_engine(url, connect_args={"server_settings": settings})


def _no_driver_transactions(connection: Any, _record: object) -> None:
    connection.isolation_level = None

"""SQLite for tests of `mqclient.sqlalchemy`, opened in each of the two ways that applications open it.

Not imported by `mqclient.testing`: needs SQLAlchemy and aiosqlite.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

BUSY_TIMEOUT_S = 0.05  # SQLite waits for real


def open_engine(path: Path, *, strict: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S) -> AsyncEngine:
    """`strict` as orders opens it, BEGIN IMMEDIATE and all; otherwise as the driver does by itself."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": busy_timeout_s})
    if strict:
        event.listen(engine.sync_engine, "connect", _no_driver_transactions)
        event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _no_driver_transactions(connection: Any, _record: object) -> None:
    connection.isolation_level = None

"""The lottery's own SQLite file: its tables, and how it is opened so that it keeps what it promises.

Invariants that the database itself holds: an order has one ticket at most, and the pot is never negative. The inbox has
a row for each event that was consumed, written in the transaction of the ticket (mechanism I2). A commit is on the disk
(WAL, synchronous=FULL); a transaction takes the write lock before it reads.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, MetaData, String, Table, event
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from mqclient.sqlalchemy import InboxTable

ID_LENGTH_MAX = 64
BUSY_TIMEOUT_MS = 5_000
POT = "gifts"

metadata = MetaData()

tickets = Table(
    "tickets",
    metadata,
    Column("order_id", String(ID_LENGTH_MAX), primary_key=True),
    Column("buyer_id", String(ID_LENGTH_MAX), nullable=False),
    Column("status", String(10), nullable=False),
    Column("drawn_at_ms", BigInteger, nullable=False),
    Index("ix_tickets_status", "status", "order_id"),
)

# One row: how many gifts are left.
pot = Table(
    "pot",
    metadata,
    Column("name", String(10), primary_key=True),
    Column("gifts", BigInteger, nullable=False),
    CheckConstraint("gifts >= 0", name="ck_pot_gifts"),
)

inbox = InboxTable(metadata)


async def open_database(path: str, gifts: int) -> AsyncEngine:
    """The engine of the file, which is made with `gifts` in its pot if it is not there yet."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    event.listen(engine.sync_engine, "connect", _open_sqlite)
    event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(insert(pot).values(name=POT, gifts=gifts).on_conflict_do_nothing())
    return engine


def _open_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver would begin its transactions late, and never IMMEDIATE
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()

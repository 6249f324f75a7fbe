"""The lottery's own schema.

Invariants that the database itself holds: an order has one ticket at most, and the pot is never negative. The inbox has
a row for each event that was consumed, written in the transaction of the ticket (MISSION I2).
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, MetaData, String, Table

from mqclient.sqlalchemy import InboxTable

ID_LENGTH_MAX = 64

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

# One row: how many gifts nobody has yet.
pot = Table(
    "pot",
    metadata,
    Column("name", String(10), primary_key=True),
    Column("gifts", BigInteger, nullable=False),
    CheckConstraint("gifts >= 0", name="ck_pot_gifts"),
)

inbox = InboxTable(metadata)

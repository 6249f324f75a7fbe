"""The schema (MISSION U10); migrations/ brings a database to it, and a test holds that both agree.

Invariants that the database itself holds: stock is never negative, a status is one of the five, closed_at_ms is set
exactly for closed orders, a product is in one line of an order at most, a key makes one order. The SQL is the common
part of SQLite and PostgreSQL. Times are wall-clock milliseconds, money is in minor units.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

ID_LENGTH_MAX = 64
KEY_LENGTH_MAX = 255

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite numbers rows by itself only for a column of exactly the type INTEGER.
_ROW_ID = BigInteger().with_variant(Integer(), "sqlite")

products = Table(
    "products",
    metadata,
    Column("product_id", String(ID_LENGTH_MAX), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("price_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("available", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
    Column("sold", BigInteger, nullable=False),
    CheckConstraint("price_minor >= 0", name="price_minor"),
    CheckConstraint("available >= 0", name="available"),
    CheckConstraint("reserved >= 0", name="reserved"),
    CheckConstraint("sold >= 0", name="sold"),
)

orders = Table(
    "orders",
    metadata,
    Column("order_id", String(ID_LENGTH_MAX), primary_key=True),
    Column("buyer_id", String(ID_LENGTH_MAX), nullable=False),
    Column("status", String(20), nullable=False),
    Column("total_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("closed_at_ms", BigInteger),
    CheckConstraint(
        "status IN ('PENDING_PAYMENT', 'AWAITING_SHIPMENT', 'SHIPPED', 'COMPLETED', 'CLOSED')", name="status"
    ),
    CheckConstraint("(status = 'CLOSED') = (closed_at_ms IS NOT NULL)", name="closed_at_ms"),
    CheckConstraint("total_minor >= 0", name="total_minor"),
    Index(None, "created_at_ms", "order_id"),
    Index(None, "buyer_id", "created_at_ms", "order_id"),
    Index(None, "status", "created_at_ms", "order_id"),
)

order_lines = Table(
    "order_lines",
    metadata,
    Column("order_id", ForeignKey(orders.c.order_id), primary_key=True),
    Column("line_number", Integer, primary_key=True, autoincrement=False),
    Column("product_id", ForeignKey(products.c.product_id), nullable=False),
    Column("quantity", BigInteger, nullable=False),
    Column("unit_price_minor", BigInteger, nullable=False),
    UniqueConstraint("order_id", "product_id"),
    CheckConstraint("quantity >= 1", name="quantity"),
    CheckConstraint("unit_price_minor >= 0", name="unit_price_minor"),
)

order_history = Table(
    "order_history",
    metadata,
    Column("change_id", _ROW_ID, primary_key=True),
    Column("order_id", ForeignKey(orders.c.order_id), nullable=False),
    Column("old_status", String(20)),
    Column("new_status", String(20), nullable=False),
    Column("reason", String(20), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "order_id", "change_id"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("idempotency_key", String(KEY_LENGTH_MAX), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    # Checked at commit: the key is claimed before its order is written.
    Column("order_id", ForeignKey(orders.c.order_id, deferrable=True, initially="DEFERRED"), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    Column("topic", String(127), nullable=False),
    Column("tag", String(127), nullable=False),
    Column("key", String(ID_LENGTH_MAX), nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("published_at_ms", BigInteger),
    Index(None, "published_at_ms", "id"),
)

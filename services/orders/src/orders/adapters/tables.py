"""The schema; migrations/ brings a database to it, and a test holds that both agree.

Invariants that the database itself holds: stock is never negative, a status is one of the five, closed_at_ms is set
exactly for closed orders, shipped_at_ms exactly for those that are or were on their way, completed_at_ms exactly for
completed ones; payment_id and paid_at_ms are set together, always for paid orders, never for those that wait for their
payment, and for closed ones if they were paid before; a payment pays for one order and is sent back once, a product is
in one line of an order at most, a key of a buyer makes one order. The SQL is the common part of SQLite and PostgreSQL.
Times are wall-clock milliseconds, money is in minor units.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    UniqueConstraint,
    true,
)

from mqclient.sqlalchemy import InboxTable, TransactionTable
from servicekit.sql.schema import ROW_ID, CountersTable, new_metadata
from servicekit.sql.tables import IdempotencyKeysTable

ID_LENGTH_MAX = 64
ACTOR_LENGTH_MAX = 64  # a caller's subject is an id, and the groups' names are shorter
REASON_LENGTH_MAX = 32
TRACE_ID_LENGTH = 32
TRACEPARENT_LENGTH = 55  # of version 00

metadata = new_metadata()

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
    Column("is_on_sale", Boolean, nullable=False, server_default=true()),
    Column("version", BigInteger, nullable=False, server_default="1"),  # the number of the seller's changes, and 1
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
    Column(
        "payment_id",
        String(ID_LENGTH_MAX),
        CheckConstraint(
            "status = 'CLOSED' OR (payment_id IS NOT NULL) = (status IN ('AWAITING_SHIPMENT', 'SHIPPED', 'COMPLETED'))",
            name="payment_id",
        ),
    ),
    Column(
        "paid_at_ms",
        BigInteger,
        CheckConstraint("(paid_at_ms IS NOT NULL) = (payment_id IS NOT NULL)", name="paid_at_ms"),
    ),
    Column(
        "shipped_at_ms",
        BigInteger,
        CheckConstraint("(shipped_at_ms IS NOT NULL) = (status IN ('SHIPPED', 'COMPLETED'))", name="shipped_at_ms"),
    ),
    Column(
        "completed_at_ms",
        BigInteger,
        CheckConstraint("(completed_at_ms IS NOT NULL) = (status = 'COMPLETED')", name="completed_at_ms"),
    ),
    # The number of rows in the order's history.
    Column("version", BigInteger, CheckConstraint("version >= 1", name="version"), nullable=False, server_default="1"),
    Column("traceparent", String(TRACEPARENT_LENGTH)),  # NULL: placed outside a trace, or by an older version
    Column("hold_payment_id", String(ID_LENGTH_MAX)),  # the last payment that held the order, see domain/order.py
    Column("hold_until_ms", BigInteger),
    CheckConstraint(
        "status IN ('PENDING_PAYMENT', 'AWAITING_SHIPMENT', 'SHIPPED', 'COMPLETED', 'CLOSED')", name="status"
    ),
    CheckConstraint("(status = 'CLOSED') = (closed_at_ms IS NOT NULL)", name="closed_at_ms"),
    CheckConstraint("total_minor >= 0", name="total_minor"),
    Index(None, "created_at_ms", "order_id"),
    Index(None, "buyer_id", "created_at_ms", "order_id"),
    Index(None, "status", "created_at_ms", "order_id"),
    Index(None, "payment_id", unique=True),
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
    Column("change_id", ROW_ID, primary_key=True),
    Column("order_id", ForeignKey(orders.c.order_id), nullable=False),
    Column("old_status", String(20)),
    Column("new_status", String(20), nullable=False),
    Column("reason", String(REASON_LENGTH_MAX), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(ACTOR_LENGTH_MAX), nullable=False),
    Column("trace_id", String(TRACE_ID_LENGTH)),
    Index(None, "order_id", "change_id"),
)

idempotency_keys = IdempotencyKeysTable(metadata, orders.c.order_id)

transactions = TransactionTable(metadata)

inbox = InboxTable(metadata)

counters = CountersTable(metadata)  # of orders and refund requests; the migration adds the triggers

refund_requests = Table(
    "refund_requests",
    metadata,
    Column("payment_id", String(ID_LENGTH_MAX), primary_key=True),
    Column("order_id", ForeignKey(orders.c.order_id), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("reason", String(20), nullable=False),
    Column("requested_at_ms", BigInteger, nullable=False),
)

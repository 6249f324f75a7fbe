"""The schema (MISSION U10); migrations/ brings a database to it, and a test holds that both agree.

Invariants that the database itself holds: an order has one payment at most that is not DECLINED; a payment has one
refund at most; a status is one of its kind, and the times and the reason that belong to it are set exactly then; an
order that can be paid has its terms; a key makes one payment. The SQL is the common part of SQLite and PostgreSQL.
Times are wall-clock milliseconds, money is in minor units.
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
    text,
)

from mqclient.sqlalchemy import InboxTable, TransactionTable
from servicekit.adapters.sql_idempotency_keys import IdempotencyKeysTable

ID_LENGTH_MAX = 64

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

payable_orders = Table(
    "payable_orders",
    metadata,
    Column("order_id", String(ID_LENGTH_MAX), primary_key=True),
    Column("status", String(10), nullable=False),
    # An order that was heard of first when it was over may lack its terms.
    Column("buyer_id", String(ID_LENGTH_MAX)),
    Column("total_minor", BigInteger),
    Column("currency", String(3)),
    Column("expires_at_ms", BigInteger),
    CheckConstraint("status IN ('OPEN', 'PAID', 'CLOSED')", name="status"),
    CheckConstraint("status <> 'OPEN' OR buyer_id IS NOT NULL", name="open_has_terms"),
    CheckConstraint(
        "(buyer_id IS NULL) = (total_minor IS NULL) AND (buyer_id IS NULL) = (currency IS NULL)"
        " AND (buyer_id IS NULL) = (expires_at_ms IS NULL)",
        name="terms",
    ),
)

_IS_LIVE = text("status <> 'DECLINED'")
_IS_UNFINISHED = text("status = 'CREATED'")

payments = Table(
    "payments",
    metadata,
    Column("payment_id", String(ID_LENGTH_MAX), primary_key=True),
    Column("order_id", String(ID_LENGTH_MAX), nullable=False),
    Column("buyer_id", String(ID_LENGTH_MAX), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("method", String(20), nullable=False),
    Column("status", String(10), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("captured_at_ms", BigInteger),
    Column("refunded_at_ms", BigInteger),
    Column("decline_reason", Text),
    CheckConstraint("amount_minor >= 1", name="amount_minor"),
    CheckConstraint("status IN ('CREATED', 'CAPTURED', 'DECLINED', 'REFUNDED')", name="status"),
    CheckConstraint("(status IN ('CAPTURED', 'REFUNDED')) = (captured_at_ms IS NOT NULL)", name="captured_at_ms"),
    CheckConstraint("(status = 'REFUNDED') = (refunded_at_ms IS NOT NULL)", name="refunded_at_ms"),
    CheckConstraint("(status = 'DECLINED') = (decline_reason IS NOT NULL)", name="decline_reason"),
    # Of all requests to pay an order exactly one gets past this.
    Index("uq_payments_live", "order_id", unique=True, sqlite_where=_IS_LIVE, postgresql_where=_IS_LIVE),
    Index("ix_payments_unfinished", "payment_id", sqlite_where=_IS_UNFINISHED, postgresql_where=_IS_UNFINISHED),
    Index(None, "created_at_ms", "payment_id"),
    Index(None, "order_id", "created_at_ms", "payment_id"),
    Index(None, "status", "amount_minor"),
)

payment_history = Table(
    "payment_history",
    metadata,
    Column("change_id", _ROW_ID, primary_key=True),
    Column("payment_id", ForeignKey(payments.c.payment_id), nullable=False),
    Column("old_status", String(10)),
    Column("new_status", String(10), nullable=False),
    Column("reason", String(20), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "payment_id", "change_id"),
)

refunds = Table(
    "refunds",
    metadata,
    Column("payment_id", ForeignKey(payments.c.payment_id), primary_key=True),
    Column("refund_id", String(2 * ID_LENGTH_MAX), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("reason", Text, nullable=False),
    Column("requested_at_ms", BigInteger, nullable=False),
    CheckConstraint("amount_minor >= 1", name="amount_minor"),
)

idempotency_keys = IdempotencyKeysTable(metadata, payments.c.payment_id)

transactions = TransactionTable(metadata)

inbox = InboxTable(metadata)

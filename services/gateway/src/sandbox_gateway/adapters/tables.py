"""The schema; migrations/ brings a database to it, and a test holds that both agree.

Invariants that the database itself holds: what is decided has its moment, and what is declined its reason; the refunds
of a charge are never more than the charge; an event has one row. The SQL is the common part of SQLite and PostgreSQL.
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
    Text,
    UniqueConstraint,
    text,
)

from servicekit.adapters.schema import ROW_ID, new_metadata

ID_LENGTH_MAX = 64
REFUND_ID_LENGTH_MAX = 128
TRACEPARENT_LENGTH = 55  # of version 00

metadata = new_metadata()

_IS_PENDING = text("status = 'pending'")
_IS_UNSENT = text("copies_sent < copies_wanted")

charges = Table(
    "charges",
    metadata,
    Column("charge_id", String(ID_LENGTH_MAX), primary_key=True),
    Column("order_id", String(ID_LENGTH_MAX), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("method", String(20), nullable=False),
    Column("status", String(10), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("due_at_ms", BigInteger, nullable=False),
    Column("decided_at_ms", BigInteger),
    Column("decline_reason", Text),
    Column("refunds_minor", BigInteger, nullable=False, server_default="0"),  # of its refunds, pending ones too
    Column("traceparent", String(TRACEPARENT_LENGTH)),  # NULL: asked for outside a trace, or of an older version
    CheckConstraint("amount_minor >= 1", name="amount_minor"),
    CheckConstraint("status IN ('pending', 'captured', 'declined')", name="status"),
    CheckConstraint("(status = 'pending') = (decided_at_ms IS NULL)", name="decided_at_ms"),
    CheckConstraint("(status = 'declined') = (decline_reason IS NOT NULL)", name="decline_reason"),
    CheckConstraint("refunds_minor >= 0 AND refunds_minor <= amount_minor", name="refunds_minor"),
    CheckConstraint("refunds_minor = 0 OR status = 'captured'", name="refunds_of_captured"),
    Index("ix_charges_pending", "due_at_ms", sqlite_where=_IS_PENDING, postgresql_where=_IS_PENDING),
)

refunds = Table(
    "refunds",
    metadata,
    Column("refund_id", String(REFUND_ID_LENGTH_MAX), primary_key=True),
    Column("charge_id", ForeignKey(charges.c.charge_id), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("status", String(10), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("due_at_ms", BigInteger, nullable=False),
    Column("refunded_at_ms", BigInteger),
    Column("traceparent", String(TRACEPARENT_LENGTH)),
    CheckConstraint("amount_minor >= 1", name="amount_minor"),
    CheckConstraint("status IN ('pending', 'refunded')", name="status"),
    CheckConstraint("(status = 'pending') = (refunded_at_ms IS NULL)", name="refunded_at_ms"),
    Index(None, "charge_id"),
    Index("ix_refunds_pending", "due_at_ms", sqlite_where=_IS_PENDING, postgresql_where=_IS_PENDING),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("webhook_id", ROW_ID, primary_key=True),
    Column("event_id", String(ID_LENGTH_MAX), nullable=False),
    Column("charge_id", ForeignKey(charges.c.charge_id), nullable=False),
    Column("refund_id", ForeignKey(refunds.c.refund_id)),
    Column("type", String(20), nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("copies_wanted", Integer, nullable=False),  # 0: never sent
    Column("copies_sent", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at_ms", BigInteger, nullable=False),
    Column("holds_order", Boolean, nullable=False),  # waits for earlier ones of its charge
    Column("last_error", Text),
    Column("traceparent", String(TRACEPARENT_LENGTH)),  # of the decision that it tells
    UniqueConstraint("event_id"),
    CheckConstraint("copies_sent >= 0 AND copies_sent <= copies_wanted", name="copies_sent"),
    Index("ix_webhooks_unsent", "next_attempt_at_ms", sqlite_where=_IS_UNSENT, postgresql_where=_IS_UNSENT),
    Index(None, "charge_id", "webhook_id"),
)

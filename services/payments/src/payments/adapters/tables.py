"""The schema; migrations/ brings a database to it, and a test holds that both agree.

Invariants that the database itself holds: an order has one payment at most that was never declined; the refunds of a
payment are together never more than it took; a posting is in the ledger once, and stays there (the migration adds
triggers); an event of the gateway is remembered once; a status is one of its kind, and the times, sums and reasons that
belong to it are set exactly then; an order that can be paid has its terms; a key makes one payment. The SQL is the
common part of SQLite and PostgreSQL. Times are wall-clock milliseconds, money is in minor units.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from mqclient.sqlalchemy import InboxTable, TransactionTable
from servicekit.sql.schema import ROW_ID, CountersTable, new_metadata
from servicekit.sql.tables import IdempotencyKeysTable, OutboxTable

ID_LENGTH_MAX = 64
STATUS_LENGTH_MAX = 20
REFUND_ID_LENGTH_MAX = 2 * ID_LENGTH_MAX
POSTING_ID_LENGTH_MAX = REFUND_ID_LENGTH_MAX + 32
EVENT_ID_LENGTH_MAX = 255
TRACEPARENT_LENGTH = 55  # of version 00

metadata = new_metadata()

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
    Column("traceparent", String(TRACEPARENT_LENGTH)),  # NULL: heard of outside a trace, or by an older version
    CheckConstraint("status IN ('OPEN', 'PAID', 'CLOSED')", name="status"),
    CheckConstraint("status <> 'OPEN' OR buyer_id IS NOT NULL", name="open_has_terms"),
    CheckConstraint(
        "(buyer_id IS NULL) = (total_minor IS NULL) AND (buyer_id IS NULL) = (currency IS NULL)"
        " AND (buyer_id IS NULL) = (expires_at_ms IS NULL)",
        name="terms",
    ),
)

_IS_LIVE = text("status <> 'DECLINED' AND overruled_decline IS NULL")
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
    Column("status", String(STATUS_LENGTH_MAX), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("captured_at_ms", BigInteger),
    Column("refunded_at_ms", BigInteger),
    Column("decline_reason", Text),
    Column("refund_requested_minor", BigInteger, nullable=False),
    Column("refunded_minor", BigInteger, nullable=False),
    Column("traceparent", String(TRACEPARENT_LENGTH)),  # of its order
    # Why it had been declined before its money was taken: code of before 0007 expects none of a captured one.
    Column(
        "overruled_decline",
        Text,
        CheckConstraint("overruled_decline IS NULL OR captured_at_ms IS NOT NULL", name="overruled_decline"),
    ),
    CheckConstraint("amount_minor >= 1", name="amount_minor"),
    CheckConstraint("status IN ('CREATED', 'CAPTURED', 'DECLINED', 'PARTIALLY_REFUNDED', 'REFUNDED')", name="status"),
    CheckConstraint(
        "(status IN ('CAPTURED', 'PARTIALLY_REFUNDED', 'REFUNDED')) = (captured_at_ms IS NOT NULL)",
        name="captured_at_ms",
    ),
    CheckConstraint("(status = 'REFUNDED') = (refunded_at_ms IS NOT NULL)", name="refunded_at_ms"),
    CheckConstraint("(status = 'DECLINED') = (decline_reason IS NOT NULL)", name="decline_reason"),
    CheckConstraint(
        "refunded_minor >= 0 AND refunded_minor <= refund_requested_minor AND refund_requested_minor <= amount_minor",
        name="refund_sums",
    ),
    CheckConstraint("refund_requested_minor = 0 OR captured_at_ms IS NOT NULL", name="refund_requested_minor"),
    CheckConstraint(
        "(status = 'REFUNDED') = (refunded_minor = amount_minor)"
        " AND (status = 'PARTIALLY_REFUNDED') = (refunded_minor > 0 AND refunded_minor < amount_minor)",
        name="refunded_minor",
    ),
    # Of all requests to pay an order exactly one gets past this.
    Index("uq_payments_live", "order_id", unique=True, sqlite_where=_IS_LIVE, postgresql_where=_IS_LIVE),
    Index("ix_payments_unfinished", "payment_id", sqlite_where=_IS_UNFINISHED, postgresql_where=_IS_UNFINISHED),
    Index(None, "created_at_ms", "payment_id"),
    Index(None, "order_id", "created_at_ms", "payment_id"),
    Index(None, "buyer_id", "created_at_ms", "payment_id"),
    Index(None, "status", "created_at_ms", "payment_id"),
)

payment_history = Table(
    "payment_history",
    metadata,
    Column("change_id", ROW_ID, primary_key=True),
    Column("payment_id", ForeignKey(payments.c.payment_id), nullable=False),
    Column("old_status", String(STATUS_LENGTH_MAX)),
    Column("new_status", String(STATUS_LENGTH_MAX), nullable=False),
    Column("reason", String(STATUS_LENGTH_MAX), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index(None, "payment_id", "change_id"),
)

_IS_REQUESTED = text("status = 'REQUESTED'")
_IS_FAILED = text("status = 'FAILED'")

refunds = Table(
    "refunds",
    metadata,
    Column("refund_id", String(REFUND_ID_LENGTH_MAX), primary_key=True),
    Column("payment_id", ForeignKey(payments.c.payment_id), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("reason", Text, nullable=False),
    Column("requested_by", String(255), nullable=False),
    Column("requested_at_ms", BigInteger, nullable=False),
    Column("status", String(STATUS_LENGTH_MAX), nullable=False),
    Column("refunded_at_ms", BigInteger),
    Column("failure", Text, CheckConstraint("(status = 'FAILED') = (failure IS NOT NULL)", name="failure")),
    CheckConstraint("amount_minor >= 1", name="amount_minor"),
    CheckConstraint("status IN ('REQUESTED', 'FAILED', 'REFUNDED')", name="status"),
    CheckConstraint("(status = 'REFUNDED') = (refunded_at_ms IS NOT NULL)", name="refunded_at_ms"),
    Index("ix_refunds_unfinished", "refund_id", sqlite_where=_IS_REQUESTED, postgresql_where=_IS_REQUESTED),
    Index("ix_refunds_failed", "requested_at_ms", "refund_id", sqlite_where=_IS_FAILED, postgresql_where=_IS_FAILED),
    Index(None, "payment_id", "requested_at_ms", "refund_id"),
    Index(None, "requested_at_ms", "refund_id"),
)

ledger_entries = Table(
    "ledger_entries",
    metadata,
    Column("entry_id", ROW_ID, primary_key=True),
    Column("posting_id", String(POSTING_ID_LENGTH_MAX), nullable=False),
    Column("account", String(20), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),  # debits are positive, credits negative
    Column("currency", String(3), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("payment_id", ForeignKey(payments.c.payment_id), nullable=False),
    Column("refund_id", ForeignKey(refunds.c.refund_id)),  # NULL: the posting of a capture
    CheckConstraint("account IN ('gateway', 'buyer-funds')", name="account"),
    CheckConstraint("amount_minor <> 0", name="amount_minor"),
    CheckConstraint(
        "posting_id = CASE WHEN refund_id IS NULL THEN 'capture/' || payment_id ELSE 'refund/' || refund_id END",
        name="posting_id",
    ),
    UniqueConstraint("posting_id", "account"),
    Index(None, "payment_id"),
    Index(None, "account", "amount_minor"),
)

gateway_events = Table(
    "gateway_events",
    metadata,
    Column("event_id", String(EVENT_ID_LENGTH_MAX), primary_key=True),
    Column("kind", String(STATUS_LENGTH_MAX), nullable=False),
    Column("occurred_at_ms", BigInteger, nullable=False),
    Column("received_at_ms", BigInteger, nullable=False),
    # No foreign keys: an event that names an unknown payment is kept as well.
    Column("payment_id", String(REFUND_ID_LENGTH_MAX), nullable=False),
    Column("refund_id", String(REFUND_ID_LENGTH_MAX)),
    Column("order_id", String(REFUND_ID_LENGTH_MAX), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("decline_reason", Text),
    Column("status", String(STATUS_LENGTH_MAX), nullable=False),
    Column("reason", Text),
    CheckConstraint("kind IN ('charge.captured', 'charge.declined', 'refund.refunded')", name="kind"),
    CheckConstraint("(kind = 'refund.refunded') = (refund_id IS NOT NULL)", name="refund_id"),
    CheckConstraint("status IN ('HANDLED', 'REPEATED', 'REFUSED')", name="status"),
    CheckConstraint("(status = 'REFUSED') = (reason IS NOT NULL)", name="reason"),
    Index(None, "payment_id"),
    Index(None, "status", "received_at_ms"),
)

idempotency_keys = IdempotencyKeysTable(metadata, payments.c.payment_id)

transactions = TransactionTable(metadata)

inbox = InboxTable(metadata)

outbox = OutboxTable(metadata)

counters = CountersTable(metadata)  # of all that is told as statistics; the migration adds the triggers

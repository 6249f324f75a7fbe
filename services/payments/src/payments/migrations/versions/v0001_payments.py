"""Payable orders, payments with history and refunds, idempotency keys, transactions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From the empty database."""
    _create_payable_orders()
    _create_payments()
    _create_refunds()
    _create_messages()


def downgrade() -> None:
    """Back to the empty database."""
    for table in ("mq_transaction", "idempotency_keys", "refunds", "payment_history", "payments", "payable_orders"):
        op.drop_table(table)


def _row_id() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _create_payable_orders() -> None:
    op.create_table(
        "payable_orders",
        sa.Column("order_id", sa.String(64), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("buyer_id", sa.String(64)),
        sa.Column("total_minor", sa.BigInteger()),
        sa.Column("currency", sa.String(3)),
        sa.Column("expires_at_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("order_id", name="pk_payable_orders"),
        sa.CheckConstraint("status IN ('OPEN', 'PAID', 'CLOSED')", name=op.f("ck_payable_orders_status")),
        sa.CheckConstraint("status <> 'OPEN' OR buyer_id IS NOT NULL", name=op.f("ck_payable_orders_open_has_terms")),
        sa.CheckConstraint(
            "(buyer_id IS NULL) = (total_minor IS NULL) AND (buyer_id IS NULL) = (currency IS NULL)"
            " AND (buyer_id IS NULL) = (expires_at_ms IS NULL)",
            name=op.f("ck_payable_orders_terms"),
        ),
    )


def _create_payments() -> None:
    op.create_table(
        "payments",
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("order_id", sa.String(64), nullable=False),
        sa.Column("buyer_id", sa.String(64), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("method", sa.String(20), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("captured_at_ms", sa.BigInteger()),
        sa.Column("refunded_at_ms", sa.BigInteger()),
        sa.Column("decline_reason", sa.Text()),
        sa.PrimaryKeyConstraint("payment_id", name="pk_payments"),
        sa.CheckConstraint("amount_minor >= 1", name=op.f("ck_payments_amount_minor")),
        sa.CheckConstraint(
            "status IN ('CREATED', 'CAPTURED', 'DECLINED', 'REFUNDED')", name=op.f("ck_payments_status")
        ),
        sa.CheckConstraint(
            "(status IN ('CAPTURED', 'REFUNDED')) = (captured_at_ms IS NOT NULL)",
            name=op.f("ck_payments_captured_at_ms"),
        ),
        sa.CheckConstraint(
            "(status = 'REFUNDED') = (refunded_at_ms IS NOT NULL)", name=op.f("ck_payments_refunded_at_ms")
        ),
        sa.CheckConstraint(
            "(status = 'DECLINED') = (decline_reason IS NOT NULL)", name=op.f("ck_payments_decline_reason")
        ),
    )
    is_live = sa.text("status <> 'DECLINED'")
    op.create_index(
        "uq_payments_live", "payments", ["order_id"], unique=True, sqlite_where=is_live, postgresql_where=is_live
    )
    is_unfinished = sa.text("status = 'CREATED'")
    op.create_index(
        "ix_payments_unfinished",
        "payments",
        ["payment_id"],
        sqlite_where=is_unfinished,
        postgresql_where=is_unfinished,
    )
    for columns in (
        ["created_at_ms", "payment_id"],
        ["order_id", "created_at_ms", "payment_id"],
        ["status", "amount_minor"],
    ):
        op.create_index("ix_payments_" + "_".join(columns), "payments", columns)
    op.create_table(
        "payment_history",
        sa.Column("change_id", _row_id(), nullable=False),
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("old_status", sa.String(10)),
        sa.Column("new_status", sa.String(10), nullable=False),
        sa.Column("reason", sa.String(20), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("change_id", name="pk_payment_history"),
        sa.ForeignKeyConstraint(["payment_id"], ["payments.payment_id"], name="fk_payment_history_payment_id"),
    )
    op.create_index("ix_payment_history_payment_id_change_id", "payment_history", ["payment_id", "change_id"])


def _create_refunds() -> None:
    op.create_table(
        "refunds",
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("refund_id", sa.String(128), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("requested_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("payment_id", name="pk_refunds"),
        sa.ForeignKeyConstraint(["payment_id"], ["payments.payment_id"], name="fk_refunds_payment_id"),
        sa.CheckConstraint("amount_minor >= 1", name=op.f("ck_refunds_amount_minor")),
    )


def _create_messages() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("idempotency_key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("idempotency_key", name="pk_idempotency_keys"),
        sa.ForeignKeyConstraint(
            ["payment_id"],
            ["payments.payment_id"],
            name="fk_idempotency_keys_payment_id",
            deferrable=True,
            initially="DEFERRED",
        ),
    )
    op.create_table(
        "mq_transaction",
        sa.Column("transaction_id", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(9), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_id", name="pk_mq_transaction"),
        sa.CheckConstraint("outcome IN ('COMMITTED', 'TOMBSTONE')", name=op.f("ck_mq_transaction_outcome")),
    )
    op.create_index("ix_mq_transaction_created_at_ms", "mq_transaction", ["created_at_ms"])

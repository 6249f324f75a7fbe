"""Charges, refunds, webhooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From the empty database."""
    _create_charges()
    _create_refunds()
    _create_webhooks()


def downgrade() -> None:
    """Back to the empty database."""
    for table in ("webhooks", "refunds", "charges"):
        op.drop_table(table)


def _create_charges() -> None:
    op.create_table(
        "charges",
        sa.Column("charge_id", sa.String(64), nullable=False),
        sa.Column("order_id", sa.String(64), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("method", sa.String(20), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("due_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("decided_at_ms", sa.BigInteger()),
        sa.Column("decline_reason", sa.Text()),
        sa.Column("refunds_minor", sa.BigInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("charge_id", name="pk_charges"),
        sa.CheckConstraint("amount_minor >= 1", name=op.f("ck_charges_amount_minor")),
        sa.CheckConstraint("status IN ('pending', 'captured', 'declined')", name=op.f("ck_charges_status")),
        sa.CheckConstraint("(status = 'pending') = (decided_at_ms IS NULL)", name=op.f("ck_charges_decided_at_ms")),
        sa.CheckConstraint(
            "(status = 'declined') = (decline_reason IS NOT NULL)", name=op.f("ck_charges_decline_reason")
        ),
        sa.CheckConstraint(
            "refunds_minor >= 0 AND refunds_minor <= amount_minor", name=op.f("ck_charges_refunds_minor")
        ),
        sa.CheckConstraint("refunds_minor = 0 OR status = 'captured'", name=op.f("ck_charges_refunds_of_captured")),
    )
    _create_index_of_pending("charges")


def _create_refunds() -> None:
    op.create_table(
        "refunds",
        sa.Column("refund_id", sa.String(128), nullable=False),
        sa.Column("charge_id", sa.String(64), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("due_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("refunded_at_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("refund_id", name="pk_refunds"),
        sa.ForeignKeyConstraint(["charge_id"], ["charges.charge_id"], name="fk_refunds_charge_id"),
        sa.CheckConstraint("amount_minor >= 1", name=op.f("ck_refunds_amount_minor")),
        sa.CheckConstraint("status IN ('pending', 'refunded')", name=op.f("ck_refunds_status")),
        sa.CheckConstraint("(status = 'pending') = (refunded_at_ms IS NULL)", name=op.f("ck_refunds_refunded_at_ms")),
    )
    op.create_index("ix_refunds_charge_id", "refunds", ["charge_id"])
    _create_index_of_pending("refunds")


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("webhook_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("event_id", sa.String(64), nullable=False),
        sa.Column("charge_id", sa.String(64), nullable=False),
        sa.Column("refund_id", sa.String(128)),
        sa.Column("type", sa.String(20), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("copies_wanted", sa.Integer(), nullable=False),
        sa.Column("copies_sent", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("holds_order", sa.Boolean(), nullable=False),
        sa.Column("last_error", sa.Text()),
        sa.PrimaryKeyConstraint("webhook_id", name="pk_webhooks"),
        sa.ForeignKeyConstraint(["charge_id"], ["charges.charge_id"], name="fk_webhooks_charge_id"),
        sa.ForeignKeyConstraint(["refund_id"], ["refunds.refund_id"], name="fk_webhooks_refund_id"),
        sa.UniqueConstraint("event_id", name="uq_webhooks_event_id"),
        sa.CheckConstraint("copies_sent >= 0 AND copies_sent <= copies_wanted", name=op.f("ck_webhooks_copies_sent")),
    )
    is_unsent = sa.text("copies_sent < copies_wanted")
    op.create_index(
        "ix_webhooks_unsent", "webhooks", ["next_attempt_at_ms"], sqlite_where=is_unsent, postgresql_where=is_unsent
    )
    op.create_index("ix_webhooks_charge_id_webhook_id", "webhooks", ["charge_id", "webhook_id"])


def _create_index_of_pending(table: str) -> None:
    is_pending = sa.text("status = 'pending'")
    op.create_index(f"ix_{table}_pending", table, ["due_at_ms"], sqlite_where=is_pending, postgresql_where=is_pending)

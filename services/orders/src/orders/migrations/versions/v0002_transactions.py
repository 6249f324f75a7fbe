"""Transactional messages in place of the outbox; orders can be paid, and refunds requested."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from servicekit.sql.schema import MigrationRejectedError

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_PAID_STATUSES = "'AWAITING_SHIPMENT', 'SHIPPED', 'COMPLETED'"


def upgrade() -> None:
    """Raises MigrationRejectedError while the outbox has unpublished messages."""
    _drop_outbox()
    op.create_table(
        "mq_transaction",
        sa.Column("transaction_id", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(9), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("transaction_id", name="pk_mq_transaction"),
        sa.CheckConstraint("outcome IN ('COMMITTED', 'TOMBSTONE')", name=op.f("ck_mq_transaction_outcome")),
    )
    op.create_index("ix_mq_transaction_created_at_ms", "mq_transaction", ["created_at_ms"])
    # The constraints belong to their columns: SQLite cannot add one to a table that is there.
    op.add_column(
        "orders",
        sa.Column(
            "payment_id",
            sa.String(64),
            sa.CheckConstraint(
                f"(payment_id IS NOT NULL) = (status IN ({_PAID_STATUSES}))", name=op.f("ck_orders_payment_id")
            ),
        ),
    )
    op.add_column(
        "orders",
        sa.Column(
            "paid_at_ms",
            sa.BigInteger(),
            sa.CheckConstraint(
                "(paid_at_ms IS NOT NULL) = (payment_id IS NOT NULL)", name=op.f("ck_orders_paid_at_ms")
            ),
        ),
    )
    op.create_index("ix_orders_payment_id", "orders", ["payment_id"], unique=True)
    op.create_table(
        "refund_requests",
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("order_id", sa.String(64), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("reason", sa.String(20), nullable=False),
        sa.Column("requested_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("payment_id", name="pk_refund_requests"),
        sa.ForeignKeyConstraint(["order_id"], ["orders.order_id"], name="fk_refund_requests_order_id"),
    )


def downgrade() -> None:
    """Back to the outbox; what payments and refunds left behind is lost."""
    op.drop_table("refund_requests")
    op.drop_index("ix_orders_payment_id", "orders")
    op.drop_column("orders", "paid_at_ms")
    op.drop_column("orders", "payment_id")
    op.drop_table("mq_transaction")
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("topic", sa.String(127), nullable=False),
        sa.Column("tag", sa.String(127), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("published_at_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
    )
    op.create_index("ix_outbox_published_at_ms_id", "outbox", ["published_at_ms", "id"])


def _drop_outbox() -> None:
    waiting = op.get_bind().execute(sa.text("SELECT count(*) FROM outbox WHERE published_at_ms IS NULL")).scalar_one()
    if waiting:
        raise MigrationRejectedError(
            f"{waiting} messages in the outbox are not published, and their orders would never close; start the version"
            " before this one with its queue once more, until GET /statistics says unpublished_messages 0"
        )
    op.drop_table("outbox")

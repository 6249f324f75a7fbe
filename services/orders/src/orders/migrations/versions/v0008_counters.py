"""Orders by status, paid orders and refund requests are counted when they change, and not when somebody asks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from servicekit.adapters.counters import Counted

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COUNTED = (
    Counted("orders", "orders", ("status",), "'orders/' || {row}.status"),
    Counted("paid_orders", "orders", ("payment_id",), "'paid-orders'", where="{row}.payment_id IS NOT NULL"),
    Counted("refund_requests", "refund_requests", ("payment_id",), "'refund-requests'"),
)


def upgrade() -> None:
    """Triggers count what the version before writes, too. Reads every order once; no order is written meanwhile."""
    op.create_table(
        "counters",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", "shard", name="pk_counters"),
    )
    for counted in COUNTED:
        counted.begin(op.get_bind())


def downgrade() -> None:
    """Nothing is lost: the version before counts the rows."""
    for counted in COUNTED:
        counted.end(op.get_bind())
    op.drop_table("counters")

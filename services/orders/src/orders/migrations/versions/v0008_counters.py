"""Orders by status, paid orders and refund requests are counted when they change, and not on each request."""

from __future__ import annotations

from alembic import op

from servicekit.sql.schema import Counted, create_counters, drop_counters

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
oldest_code = "0006"

COUNTED = (
    Counted("orders", "orders", ("status",), "'orders/' || {row}.status"),
    Counted("paid_orders", "orders", ("payment_id",), "'paid-orders'", where="{row}.payment_id IS NOT NULL"),
    Counted("refund_requests", "refund_requests", ("payment_id",), "'refund-requests'"),
)


def upgrade() -> None:
    """Triggers count what the version before writes, too. Reads every order once; no order is written meanwhile."""
    create_counters(op.get_bind(), COUNTED)


def downgrade() -> None:
    """Nothing is lost: the version before counts the rows."""
    drop_counters(op.get_bind(), COUNTED)

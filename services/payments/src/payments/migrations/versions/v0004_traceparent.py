"""What may go on after its request keeps its order's traceparent: payable orders, payments, messages that wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
oldest_code = "0003"

_TABLES = ("payable_orders", "payments", "outbox")


def upgrade() -> None:
    """What is there has none, and goes on in the trace of the request for it."""
    for table in _TABLES:
        op.add_column(table, sa.Column("traceparent", sa.String(55)))


def downgrade() -> None:
    """What is lost: which traces payments and waiting messages belong to."""
    for table in reversed(_TABLES):
        op.drop_column(table, "traceparent")

"""Charges, refunds and webhooks keep the traceparent of their request: what comes of them later is in that trace."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
oldest_code = "0001"

_TABLES = ("charges", "refunds", "webhooks")


def upgrade() -> None:
    """What is there has none, and is told in a trace of its own."""
    for table in _TABLES:
        op.add_column(table, sa.Column("traceparent", sa.String(55)))


def downgrade() -> None:
    """What is lost: which traces charges, refunds and webhooks belong to."""
    for table in reversed(_TABLES):
        op.drop_column(table, "traceparent")

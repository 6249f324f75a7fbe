"""An order keeps where its trace began, so that whatever happens to it later belongs to that trace."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
oldest_code = "0004"


def upgrade() -> None:
    """Orders that were placed before begin no trace; what happens to them is in the trace of the request for it."""
    op.add_column("orders", sa.Column("traceparent", sa.String(55)))


def downgrade() -> None:
    """What is lost: which trace an order belongs to. Its history keeps the traces of its changes."""
    op.drop_column("orders", "traceparent")

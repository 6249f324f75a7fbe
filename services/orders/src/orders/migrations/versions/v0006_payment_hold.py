"""A payment holds its order before it captures money, so that the order is not closed meanwhile."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
oldest_code = "0005"


def upgrade() -> None:
    """Orders that were placed before are held by nothing. No row is rewritten."""
    op.add_column("orders", sa.Column("hold_payment_id", sa.String(64)))
    op.add_column("orders", sa.Column("hold_until_ms", sa.BigInteger()))


def downgrade() -> None:
    """What is lost: which payments are in progress. An order may then be closed under one, and the money goes back."""
    op.drop_column("orders", "hold_until_ms")
    op.drop_column("orders", "hold_payment_id")

"""A seller changes a product: its price, its stock, and whether it is on sale."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
oldest_code = "0006"


def upgrade() -> None:
    """Every product is on sale, as it was. The version before writes rows as it did, and sells what it finds."""
    op.add_column("products", sa.Column("is_on_sale", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("products", sa.Column("version", sa.BigInteger(), nullable=False, server_default="1"))


def downgrade() -> None:
    """What is lost: which sales have ended. Those products are on sale again."""
    op.drop_column("products", "version")
    op.drop_column("products", "is_on_sale")

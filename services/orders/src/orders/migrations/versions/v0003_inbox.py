"""Each message changes something once: the inbox, and an index by which old idempotency keys go."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Messages that were consumed before are not in the inbox; the guards of the domain know them."""
    op.create_table(
        "mq_inbox",
        sa.Column("consumer_group", sa.String(255), nullable=False),
        sa.Column("business_key", sa.String(255), nullable=False),
        sa.Column("consumed_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("consumer_group", "business_key", name="pk_mq_inbox"),
    )
    op.create_index("ix_mq_inbox_consumed_at_ms", "mq_inbox", ["consumed_at_ms"])
    op.create_index("ix_idempotency_keys_created_at_ms", "idempotency_keys", ["created_at_ms"])


def downgrade() -> None:
    """Nothing is lost but the memory of what was consumed."""
    op.drop_index("ix_idempotency_keys_created_at_ms", "idempotency_keys")
    op.drop_index("ix_mq_inbox_consumed_at_ms", "mq_inbox")
    op.drop_table("mq_inbox")

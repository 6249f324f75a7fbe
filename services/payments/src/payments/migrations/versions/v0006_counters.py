"""What GET /statistics tells is counted when it changes, and not when somebody asks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from servicekit.adapters.counters import Counted

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_LEDGER = ("account", "amount_minor")
_AT_THE_GATEWAY = "{row}.account = 'gateway' AND {row}.amount_minor"

COUNTED = (
    Counted("payments", "payments", ("status",), "'payments/' || {row}.status"),
    Counted("refunds", "refunds", ("status",), "'refunds/' || {row}.status"),
    Counted("gateway_events", "gateway_events", ("status",), "'gateway-events/' || {row}.status"),
    Counted("ledger", "ledger_entries", _LEDGER, "'ledger/' || {row}.account", "{row}.amount_minor"),
    Counted("captured", "ledger_entries", _LEDGER, "'captured'", "{row}.amount_minor", f"{_AT_THE_GATEWAY} > 0"),
    Counted("refunded", "ledger_entries", _LEDGER, "'refunded'", "-{row}.amount_minor", f"{_AT_THE_GATEWAY} < 0"),
)


def upgrade() -> None:
    """Triggers count what the version before writes, too. Reads every row once; nothing is written meanwhile."""
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

"""What GET /statistics tells is counted when it changes, and not on each request."""

from __future__ import annotations

from alembic import op

from servicekit.sql.schema import Counted, create_counters, drop_counters

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
oldest_code = "0005"

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
    create_counters(op.get_bind(), COUNTED)


def downgrade() -> None:
    """Nothing is lost: the version before counts the rows."""
    drop_counters(op.get_bind(), COUNTED)

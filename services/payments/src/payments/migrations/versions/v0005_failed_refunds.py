"""A refund that the gateway rejects is FAILED, with what the gateway said.

SQLite cannot change a check, and the append-only ledger refers to the table, which can therefore not be made anew: its
definition is edited in place, as SQLite's documentation of ALTER TABLE describes for checks.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BEFORE, _AFTER = "status IN ('REQUESTED', 'REFUNDED')", "status IN ('REQUESTED', 'FAILED', 'REFUNDED')"
_IS_FAILED = sa.text("status = 'FAILED'")


def upgrade() -> None:
    """No refund has failed yet; one that the gateway rejects does so when it is asked for next."""
    _change_check(_BEFORE, _AFTER)
    check = sa.CheckConstraint("(status = 'FAILED') = (failure IS NOT NULL)", name=op.f("ck_refunds_failure"))
    op.add_column("refunds", sa.Column("failure", sa.Text(), check))
    op.create_index(
        "ix_refunds_failed",
        "refunds",
        ["requested_at_ms", "refund_id"],
        sqlite_where=_IS_FAILED,
        postgresql_where=_IS_FAILED,
    )


def downgrade() -> None:
    """What is lost: why refunds have failed. They are REQUESTED again, and the gateway is asked again and again."""
    op.drop_index("ix_refunds_failed", "refunds")
    op.drop_column("refunds", "failure")
    op.execute("UPDATE refunds SET status = 'REQUESTED' WHERE status = 'FAILED'")
    _change_check(_AFTER, _BEFORE)


def _change_check(before: str, after: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint(op.f("ck_refunds_status"), "refunds", type_="check")
        op.create_check_constraint(op.f("ck_refunds_status"), "refunds", after)
        return
    connection = op.get_bind()
    version = connection.execute(sa.text("PRAGMA schema_version")).scalar_one()
    connection.execute(sa.text("PRAGMA writable_schema = ON"))
    changed = connection.execute(
        sa.text(
            "UPDATE sqlite_master SET sql = replace(sql, :before, :after)"
            " WHERE type = 'table' AND name = 'refunds' AND instr(sql, :before) > 0"
        ),
        {"before": before, "after": after},
    )
    if changed.rowcount != 1:
        raise RuntimeError(f"the table refunds has no check {before!r}")
    connection.execute(sa.text(f"PRAGMA schema_version = {version + 1}"))  # connections read the definition anew
    connection.execute(sa.text("PRAGMA writable_schema = OFF"))

"""A payment that was declined, and captured all the same, may stand beside another of its order (ADR 144)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from servicekit.sql.schema import MigrationRejectedError

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
oldest_code = "0005"

_BEFORE = "status <> 'DECLINED'"
_AFTER = f"{_BEFORE} AND overruled_decline IS NULL"


def upgrade() -> None:
    """The version before goes on: to it such a payment is CAPTURED, and it makes none."""
    check = sa.CheckConstraint(
        "overruled_decline IS NULL OR captured_at_ms IS NOT NULL", name=op.f("ck_payments_overruled_decline")
    )
    op.add_column("payments", sa.Column("overruled_decline", sa.Text(), check))
    _change_index(_AFTER)


def downgrade() -> None:
    """What is lost: why payments had been declined before their money was taken.

    Rejected while such a payment stands beside another of its order.
    """
    doubled = op.get_bind().execute(
        sa.text(
            f"SELECT COUNT(*) FROM (SELECT order_id FROM payments WHERE {_BEFORE}"  # noqa: S608 - a constant
            " GROUP BY order_id HAVING COUNT(*) > 1) AS doubled"
        )
    )
    orders = doubled.scalar_one()
    if orders:
        raise MigrationRejectedError(f"{orders} orders have two payments that are not DECLINED; 0006 allows one")
    _change_index(_BEFORE)
    op.drop_column("payments", "overruled_decline")


def _change_index(condition: str) -> None:
    op.drop_index("uq_payments_live", "payments")
    where = sa.text(condition)
    op.create_index(
        "uq_payments_live", "payments", ["order_id"], unique=True, sqlite_where=where, postgresql_where=where
    )

"""Orders are shipped, completed, and cancelled after they were paid; changes name their actors; keys have owners."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_PAID_STATUSES = "'AWAITING_SHIPMENT', 'SHIPPED', 'COMPLETED'"


def upgrade() -> None:
    """Orders get the version that their history has; the actors of old changes follow from their reasons."""
    _replace_order_columns(_new_order_columns())
    op.execute(
        "UPDATE orders SET status = status_before, payment_id = payment_id_before, paid_at_ms = paid_at_ms_before,"
        " version = (SELECT count(*) FROM order_history AS h WHERE h.order_id = orders.order_id),"
        " shipped_at_ms = (SELECT max(at_ms) FROM order_history AS h"
        " WHERE h.order_id = orders.order_id AND h.new_status = 'SHIPPED'),"
        " completed_at_ms = (SELECT max(at_ms) FROM order_history AS h"
        " WHERE h.order_id = orders.order_id AND h.new_status = 'COMPLETED')"
    )
    _drop_copies()
    op.add_column("order_history", sa.Column("actor", sa.String(64)))
    op.add_column("order_history", sa.Column("trace_id", sa.String(32)))
    op.execute(
        "UPDATE order_history SET actor = CASE reason WHEN 'paid' THEN 'order-payment-handler'"
        " WHEN 'expired' THEN 'order-timeout-handler' WHEN 'shipped' THEN 'unknown'"
        " ELSE (SELECT buyer_id FROM orders WHERE orders.order_id = order_history.order_id) END"
    )
    with op.batch_alter_table("order_history") as table:
        table.alter_column("actor", existing_type=sa.String(64), nullable=False)
        table.alter_column("reason", existing_type=sa.String(20), type_=sa.String(32), existing_nullable=False)
    _replace_keys(
        [sa.Column("subject", sa.String(64), nullable=False)],
        ["subject", "idempotency_key"],
        "SELECT orders.buyer_id, before.idempotency_key, before.fingerprint, before.order_id, before.created_at_ms"
        " FROM idempotency_keys_before AS before JOIN orders ON orders.order_id = before.order_id",
    )


def downgrade() -> None:
    """What is lost: the actors of changes, payments of closed orders, and all but the oldest of equal keys."""
    _replace_order_columns(_old_order_columns(), ("version", "completed_at_ms", "shipped_at_ms"))
    op.execute(
        "UPDATE orders SET status = status_before,"
        " payment_id = CASE WHEN status_before <> 'CLOSED' THEN payment_id_before END,"
        " paid_at_ms = CASE WHEN status_before <> 'CLOSED' THEN paid_at_ms_before END"
    )
    _drop_copies()
    op.execute("UPDATE order_history SET reason = 'cancelled' WHERE reason = 'seller-cancelled'")
    op.execute("UPDATE order_history SET reason = 'received' WHERE reason = 'completed-automatically'")
    with op.batch_alter_table("order_history") as table:
        table.drop_column("actor")
        table.drop_column("trace_id")
        table.alter_column("reason", existing_type=sa.String(32), type_=sa.String(20), existing_nullable=False)
    _replace_keys(
        [],
        ["idempotency_key"],
        "SELECT before.idempotency_key, before.fingerprint, before.order_id, before.created_at_ms"
        " FROM idempotency_keys_before AS before WHERE NOT EXISTS (SELECT 1 FROM idempotency_keys_before AS older"
        " WHERE older.idempotency_key = before.idempotency_key AND (older.created_at_ms < before.created_at_ms"
        " OR (older.created_at_ms = before.created_at_ms AND older.subject < before.subject)))",
    )


def _new_order_columns() -> list[sa.Column[object]]:
    paid = f"status = 'CLOSED' OR (payment_id IS NOT NULL) = (status IN ({_PAID_STATUSES}))"
    return [
        *_payment_columns(paid),
        sa.Column(
            "shipped_at_ms",
            sa.BigInteger(),
            sa.CheckConstraint(
                "(shipped_at_ms IS NOT NULL) = (status IN ('SHIPPED', 'COMPLETED'))",
                name=op.f("ck_orders_shipped_at_ms"),
            ),
        ),
        sa.Column(
            "completed_at_ms",
            sa.BigInteger(),
            sa.CheckConstraint(
                "(completed_at_ms IS NOT NULL) = (status = 'COMPLETED')", name=op.f("ck_orders_completed_at_ms")
            ),
        ),
        sa.Column(
            "version",
            sa.BigInteger(),
            sa.CheckConstraint("version >= 1", name=op.f("ck_orders_version")),
            nullable=False,
            server_default="1",
        ),
    ]


def _old_order_columns() -> list[sa.Column[object]]:
    return _payment_columns(f"(payment_id IS NOT NULL) = (status IN ({_PAID_STATUSES}))")


def _payment_columns(check: str) -> list[sa.Column[object]]:
    return [
        sa.Column("payment_id", sa.String(64), sa.CheckConstraint(check, name=op.f("ck_orders_payment_id"))),
        sa.Column(
            "paid_at_ms",
            sa.BigInteger(),
            sa.CheckConstraint(
                "(paid_at_ms IS NOT NULL) = (payment_id IS NOT NULL)", name=op.f("ck_orders_paid_at_ms")
            ),
        ),
    ]


def _replace_order_columns(columns: Sequence[sa.Column[object]], dropped: Sequence[str] = ()) -> None:
    """Drop payment_id, paid_at_ms and `dropped`, and add `columns`, empty; copies are in the columns `*_before`.

    A check goes and comes with its column: SQLite has no other way but to make the table anew, and others refer to it.
    Every order is made to wait for its payment meanwhile, or to be closed, so that empty columns pass their checks.
    """
    for name, kind in (("status", sa.String(20)), ("payment_id", sa.String(64)), ("paid_at_ms", sa.BigInteger())):
        op.add_column("orders", sa.Column(f"{name}_before", kind))
    op.execute(
        "UPDATE orders SET status_before = status, payment_id_before = payment_id, paid_at_ms_before = paid_at_ms"
    )
    op.drop_index("ix_orders_payment_id", "orders")
    for name in (*dropped, "paid_at_ms", "payment_id"):
        op.drop_column("orders", name)
    op.execute("UPDATE orders SET status = 'PENDING_PAYMENT' WHERE status <> 'CLOSED'")
    for column in columns:
        op.add_column("orders", column)


def _drop_copies() -> None:
    for name in ("status", "payment_id", "paid_at_ms"):
        op.drop_column("orders", f"{name}_before")
    op.create_index("ix_orders_payment_id", "orders", ["payment_id"], unique=True)


def _replace_keys(owner: Sequence[sa.Column[object]], primary_key: Sequence[str], rows: str) -> None:
    """Make the table anew with this primary key; `rows` selects what it holds from `idempotency_keys_before`."""
    op.execute("CREATE TABLE idempotency_keys_before AS SELECT * FROM idempotency_keys")
    op.drop_table("idempotency_keys")
    op.create_table(
        "idempotency_keys",
        *owner,
        sa.Column("idempotency_key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("order_id", sa.String(64), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(*primary_key, name="pk_idempotency_keys"),
        sa.ForeignKeyConstraint(
            ["order_id"],
            ["orders.order_id"],
            name="fk_idempotency_keys_order_id",
            deferrable=True,
            initially="DEFERRED",
        ),
    )
    op.create_index("ix_idempotency_keys_created_at_ms", "idempotency_keys", ["created_at_ms"])
    op.execute(f"INSERT INTO idempotency_keys {rows}")
    op.drop_table("idempotency_keys_before")

"""Products, orders with lines and history, idempotency keys, outbox."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STATUSES = "'PENDING_PAYMENT', 'AWAITING_SHIPMENT', 'SHIPPED', 'COMPLETED', 'CLOSED'"


def upgrade() -> None:
    """From the empty database."""
    _create_products()
    _create_orders()
    _create_messages()


def downgrade() -> None:
    """Back to the empty database."""
    for table in ("outbox", "idempotency_keys", "order_history", "order_lines", "orders", "products"):
        op.drop_table(table)


def _row_id() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _create_products() -> None:
    op.create_table(
        "products",
        sa.Column("product_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("price_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("available", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("sold", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("product_id", name="pk_products"),
        sa.CheckConstraint("price_minor >= 0", name=op.f("ck_products_price_minor")),
        sa.CheckConstraint("available >= 0", name=op.f("ck_products_available")),
        sa.CheckConstraint("reserved >= 0", name=op.f("ck_products_reserved")),
        sa.CheckConstraint("sold >= 0", name=op.f("ck_products_sold")),
    )


def _create_orders() -> None:
    op.create_table(
        "orders",
        sa.Column("order_id", sa.String(64), nullable=False),
        sa.Column("buyer_id", sa.String(64), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("total_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("closed_at_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("order_id", name="pk_orders"),
        sa.CheckConstraint(f"status IN ({_STATUSES})", name=op.f("ck_orders_status")),
        sa.CheckConstraint("(status = 'CLOSED') = (closed_at_ms IS NOT NULL)", name=op.f("ck_orders_closed_at_ms")),
        sa.CheckConstraint("total_minor >= 0", name=op.f("ck_orders_total_minor")),
    )
    for columns in (["created_at_ms"], ["buyer_id", "created_at_ms"], ["status", "created_at_ms"]):
        columns.append("order_id")
        op.create_index("ix_orders_" + "_".join(columns), "orders", columns)
    op.create_table(
        "order_lines",
        sa.Column("order_id", sa.String(64), nullable=False),
        sa.Column("line_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("product_id", sa.String(64), nullable=False),
        sa.Column("quantity", sa.BigInteger(), nullable=False),
        sa.Column("unit_price_minor", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("order_id", "line_number", name="pk_order_lines"),
        sa.ForeignKeyConstraint(["order_id"], ["orders.order_id"], name="fk_order_lines_order_id"),
        sa.ForeignKeyConstraint(["product_id"], ["products.product_id"], name="fk_order_lines_product_id"),
        sa.UniqueConstraint("order_id", "product_id", name="uq_order_lines_order_id_product_id"),
        sa.CheckConstraint("quantity >= 1", name=op.f("ck_order_lines_quantity")),
        sa.CheckConstraint("unit_price_minor >= 0", name=op.f("ck_order_lines_unit_price_minor")),
    )
    op.create_table(
        "order_history",
        sa.Column("change_id", _row_id(), nullable=False),
        sa.Column("order_id", sa.String(64), nullable=False),
        sa.Column("old_status", sa.String(20)),
        sa.Column("new_status", sa.String(20), nullable=False),
        sa.Column("reason", sa.String(20), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("change_id", name="pk_order_history"),
        sa.ForeignKeyConstraint(["order_id"], ["orders.order_id"], name="fk_order_history_order_id"),
    )
    op.create_index("ix_order_history_order_id_change_id", "order_history", ["order_id", "change_id"])


def _create_messages() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("idempotency_key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("order_id", sa.String(64), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("idempotency_key", name="pk_idempotency_keys"),
        sa.ForeignKeyConstraint(
            ["order_id"],
            ["orders.order_id"],
            name="fk_idempotency_keys_order_id",
            deferrable=True,
            initially="DEFERRED",
        ),
    )
    op.create_table(
        "outbox",
        sa.Column("id", _row_id(), nullable=False),
        sa.Column("topic", sa.String(127), nullable=False),
        sa.Column("tag", sa.String(127), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("published_at_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
    )
    op.create_index("ix_outbox_published_at_ms_id", "outbox", ["published_at_ms", "id"])

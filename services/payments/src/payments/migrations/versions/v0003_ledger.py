"""Several refunds of a payment, the ledger, the gateway's events, the outbox, and idempotency keys of their users.

SQLite cannot change a constraint, so the tables whose constraints change are copied away, made anew and filled; nothing
but their own children refers to them, and those go first and come last.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from servicekit.sql.schema import MigrationRejectedError

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_CHANGED = ("idempotency_keys", "refunds", "payment_history", "payments")  # children before parents

_FILL = (
    "INSERT INTO payments SELECT p.*,"
    " CASE WHEN p.status = 'REFUNDED' OR r.payment_id IS NOT NULL THEN p.amount_minor ELSE 0 END,"
    " CASE WHEN p.status = 'REFUNDED' THEN p.amount_minor ELSE 0 END"
    " FROM old_payments p LEFT JOIN old_refunds r ON r.payment_id = p.payment_id",
    "INSERT INTO payment_history (payment_id, old_status, new_status, reason, at_ms)"
    " SELECT payment_id, old_status, new_status, reason, at_ms FROM old_payment_history ORDER BY change_id",
    "INSERT INTO refunds SELECT r.refund_id, r.payment_id, r.amount_minor, r.currency, r.reason, 'refund-handler',"
    " r.requested_at_ms, CASE WHEN p.status = 'REFUNDED' THEN 'REFUNDED' ELSE 'REQUESTED' END, p.refunded_at_ms"
    " FROM old_refunds r JOIN old_payments p ON p.payment_id = r.payment_id",
    "INSERT INTO idempotency_keys SELECT p.buyer_id, k.idempotency_key, k.fingerprint, k.payment_id, k.created_at_ms"
    " FROM old_idempotency_keys k JOIN old_payments p ON p.payment_id = k.payment_id",
)

_POST = (
    "INSERT INTO ledger_entries (posting_id, account, amount_minor, currency, at_ms, payment_id, refund_id)"
    " SELECT 'capture/' || payment_id, '{account}', {sign} amount_minor, currency, captured_at_ms, payment_id, NULL"
    " FROM payments WHERE captured_at_ms IS NOT NULL ORDER BY captured_at_ms, payment_id",
    "INSERT INTO ledger_entries (posting_id, account, amount_minor, currency, at_ms, payment_id, refund_id)"
    " SELECT 'refund/' || refund_id, '{account}', -({sign} amount_minor), currency, refunded_at_ms, payment_id,"
    " refund_id FROM refunds WHERE status = 'REFUNDED' ORDER BY refunded_at_ms, refund_id",
)
_ACCOUNTS = (("gateway", "+"), ("buyer-funds", "-"))

_FILL_BACK = (
    "INSERT INTO payments SELECT payment_id, order_id, buyer_id, amount_minor, currency, method, status, created_at_ms,"
    " captured_at_ms, refunded_at_ms, decline_reason FROM old_payments",
    "INSERT INTO payment_history (payment_id, old_status, new_status, reason, at_ms)"
    " SELECT payment_id, old_status, new_status, reason, at_ms FROM old_payment_history ORDER BY change_id",
    "INSERT INTO refunds SELECT payment_id, refund_id, amount_minor, currency, reason, requested_at_ms"
    " FROM old_refunds",
    # Two buyers may have used one key, and the version before knows one of them: the first.
    "INSERT INTO idempotency_keys SELECT idempotency_key, fingerprint, payment_id, created_at_ms"
    " FROM old_idempotency_keys k WHERE subject = (SELECT min(subject) FROM old_idempotency_keys o"
    " WHERE o.idempotency_key = k.idempotency_key)",
)


def upgrade() -> None:
    """Every capture and every refund of before is posted in the ledger, at its own moment."""
    _copy_away()
    _create_payments(
        status_length=20,
        statuses="'CREATED', 'CAPTURED', 'DECLINED', 'PARTIALLY_REFUNDED', 'REFUNDED'",
        took_money="'CAPTURED', 'PARTIALLY_REFUNDED', 'REFUNDED'",
        more=_refund_sums(),
    )
    _create_indexes(["buyer_id", "created_at_ms", "payment_id"], ["status", "created_at_ms", "payment_id"])
    _create_refunds()
    _create_keys(sa.Column("subject", sa.String(64), nullable=False))
    _fill(_FILL)
    _create_ledger()
    for statement in _POST:
        for account, sign in _ACCOUNTS:
            op.execute(statement.format(account=account, sign=sign))
    _keep_ledger()
    _create_gateway_events()
    _create_outbox()


def downgrade() -> None:
    """Ledger and events are lost. Raises MigrationRejectedError for what the version before could not understand."""
    _reject_if_not_understood()
    op.drop_table("outbox")
    op.drop_table("gateway_events")
    op.drop_table("ledger_entries")  # and its triggers with it
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION keep_ledger_entries()")
    _copy_away()
    _create_payments(
        status_length=10,
        statuses="'CREATED', 'CAPTURED', 'DECLINED', 'REFUNDED'",
        took_money="'CAPTURED', 'REFUNDED'",
        more=[],
    )
    _create_indexes(["status", "amount_minor"])
    _create_old_refunds()
    _create_keys()
    _fill(_FILL_BACK)


def _reject_if_not_understood() -> None:
    connection = op.get_bind()
    waiting = connection.execute(sa.text("SELECT count(*) FROM outbox")).scalar_one()
    if waiting:
        raise MigrationRejectedError(
            f"{waiting} messages in the outbox are not told, and orders would never hear of their money; start this"
            " version with its queue once more, until GET /statistics says outbox_messages 0"
        )
    partial = connection.execute(
        sa.text(
            "SELECT count(*) FROM refunds r JOIN payments p USING (payment_id) WHERE r.amount_minor < p.amount_minor"
        )
    ).scalar_one()
    if partial:
        raise MigrationRejectedError(
            f"{partial} refunds are of a part of their payment, and the version before knows only whole ones"
        )


def _copy_away() -> None:
    for table in _CHANGED:
        op.execute(f"CREATE TEMPORARY TABLE old_{table} AS SELECT * FROM {table}")  # noqa: S608 - names from above
    for table in _CHANGED:
        op.drop_table(table)


def _fill(statements: tuple[str, ...]) -> None:
    for statement in statements:
        op.execute(statement)
    for table in _CHANGED:
        op.execute(f"DROP TABLE old_{table}")


def _row_id() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _create_payments(*, status_length: int, statuses: str, took_money: str, more: list[sa.schema.SchemaItem]) -> None:
    op.create_table(
        "payments",
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("order_id", sa.String(64), nullable=False),
        sa.Column("buyer_id", sa.String(64), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("method", sa.String(20), nullable=False),
        sa.Column("status", sa.String(status_length), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("captured_at_ms", sa.BigInteger()),
        sa.Column("refunded_at_ms", sa.BigInteger()),
        sa.Column("decline_reason", sa.Text()),
        *more,
        sa.PrimaryKeyConstraint("payment_id", name="pk_payments"),
        sa.CheckConstraint("amount_minor >= 1", name=op.f("ck_payments_amount_minor")),
        sa.CheckConstraint(f"status IN ({statuses})", name=op.f("ck_payments_status")),
        sa.CheckConstraint(
            f"(status IN ({took_money})) = (captured_at_ms IS NOT NULL)", name=op.f("ck_payments_captured_at_ms")
        ),
        sa.CheckConstraint(
            "(status = 'REFUNDED') = (refunded_at_ms IS NOT NULL)", name=op.f("ck_payments_refunded_at_ms")
        ),
        sa.CheckConstraint(
            "(status = 'DECLINED') = (decline_reason IS NOT NULL)", name=op.f("ck_payments_decline_reason")
        ),
    )
    op.create_table(
        "payment_history",
        sa.Column("change_id", _row_id(), nullable=False),
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("old_status", sa.String(status_length)),
        sa.Column("new_status", sa.String(status_length), nullable=False),
        sa.Column("reason", sa.String(20), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("change_id", name="pk_payment_history"),
        sa.ForeignKeyConstraint(["payment_id"], ["payments.payment_id"], name="fk_payment_history_payment_id"),
    )
    op.create_index("ix_payment_history_payment_id_change_id", "payment_history", ["payment_id", "change_id"])


def _refund_sums() -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("refund_requested_minor", sa.BigInteger(), nullable=False),
        sa.Column("refunded_minor", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "refunded_minor >= 0 AND refunded_minor <= refund_requested_minor"
            " AND refund_requested_minor <= amount_minor",
            name=op.f("ck_payments_refund_sums"),
        ),
        sa.CheckConstraint(
            "refund_requested_minor = 0 OR captured_at_ms IS NOT NULL", name=op.f("ck_payments_refund_requested_minor")
        ),
        sa.CheckConstraint(
            "(status = 'REFUNDED') = (refunded_minor = amount_minor)"
            " AND (status = 'PARTIALLY_REFUNDED') = (refunded_minor > 0 AND refunded_minor < amount_minor)",
            name=op.f("ck_payments_refunded_minor"),
        ),
    ]


def _create_indexes(*more: list[str]) -> None:
    is_live, is_unfinished = sa.text("status <> 'DECLINED'"), sa.text("status = 'CREATED'")
    op.create_index(
        "uq_payments_live", "payments", ["order_id"], unique=True, sqlite_where=is_live, postgresql_where=is_live
    )
    op.create_index(
        "ix_payments_unfinished",
        "payments",
        ["payment_id"],
        sqlite_where=is_unfinished,
        postgresql_where=is_unfinished,
    )
    for columns in (["created_at_ms", "payment_id"], ["order_id", "created_at_ms", "payment_id"], *more):
        op.create_index("ix_payments_" + "_".join(columns), "payments", columns)


def _create_refunds() -> None:
    op.create_table(
        "refunds",
        sa.Column("refund_id", sa.String(128), nullable=False),
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.String(255), nullable=False),
        sa.Column("requested_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("refunded_at_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("refund_id", name="pk_refunds"),
        sa.ForeignKeyConstraint(["payment_id"], ["payments.payment_id"], name="fk_refunds_payment_id"),
        sa.CheckConstraint("amount_minor >= 1", name=op.f("ck_refunds_amount_minor")),
        sa.CheckConstraint("status IN ('REQUESTED', 'REFUNDED')", name=op.f("ck_refunds_status")),
        sa.CheckConstraint(
            "(status = 'REFUNDED') = (refunded_at_ms IS NOT NULL)", name=op.f("ck_refunds_refunded_at_ms")
        ),
    )
    is_requested = sa.text("status = 'REQUESTED'")
    op.create_index(
        "ix_refunds_unfinished", "refunds", ["refund_id"], sqlite_where=is_requested, postgresql_where=is_requested
    )
    for columns in (["payment_id", "requested_at_ms", "refund_id"], ["requested_at_ms", "refund_id"]):
        op.create_index("ix_refunds_" + "_".join(columns), "refunds", columns)


def _create_old_refunds() -> None:
    op.create_table(
        "refunds",
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("refund_id", sa.String(128), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("requested_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("payment_id", name="pk_refunds"),
        sa.ForeignKeyConstraint(["payment_id"], ["payments.payment_id"], name="fk_refunds_payment_id"),
        sa.CheckConstraint("amount_minor >= 1", name=op.f("ck_refunds_amount_minor")),
    )


def _create_keys(*subject: sa.Column[str]) -> None:
    op.create_table(
        "idempotency_keys",
        *subject,
        sa.Column("idempotency_key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(*(column.name for column in subject), "idempotency_key", name="pk_idempotency_keys"),
        sa.ForeignKeyConstraint(
            ["payment_id"],
            ["payments.payment_id"],
            name="fk_idempotency_keys_payment_id",
            deferrable=True,
            initially="DEFERRED",
        ),
    )
    op.create_index("ix_idempotency_keys_created_at_ms", "idempotency_keys", ["created_at_ms"])


def _create_ledger() -> None:
    op.create_table(
        "ledger_entries",
        sa.Column("entry_id", _row_id(), nullable=False),
        sa.Column("posting_id", sa.String(160), nullable=False),
        sa.Column("account", sa.String(20), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("refund_id", sa.String(128)),
        sa.PrimaryKeyConstraint("entry_id", name="pk_ledger_entries"),
        sa.ForeignKeyConstraint(["payment_id"], ["payments.payment_id"], name="fk_ledger_entries_payment_id"),
        sa.ForeignKeyConstraint(["refund_id"], ["refunds.refund_id"], name="fk_ledger_entries_refund_id"),
        sa.UniqueConstraint("posting_id", "account", name="uq_ledger_entries_posting_id_account"),
        sa.CheckConstraint("account IN ('gateway', 'buyer-funds')", name=op.f("ck_ledger_entries_account")),
        sa.CheckConstraint("amount_minor <> 0", name=op.f("ck_ledger_entries_amount_minor")),
        sa.CheckConstraint(
            "posting_id = CASE WHEN refund_id IS NULL THEN 'capture/' || payment_id ELSE 'refund/' || refund_id END",
            name=op.f("ck_ledger_entries_posting_id"),
        ),
    )
    op.create_index("ix_ledger_entries_payment_id", "ledger_entries", ["payment_id"])
    op.create_index("ix_ledger_entries_account_amount_minor", "ledger_entries", ["account", "amount_minor"])


def _keep_ledger() -> None:
    """What is in the ledger stays in it, whatever program has the database."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION keep_ledger_entries() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'the ledger is append-only' USING ERRCODE = 'integrity_constraint_violation';"
            " END $$"
        )
        op.execute(
            "CREATE TRIGGER keep_ledger_entries BEFORE UPDATE OR DELETE ON ledger_entries"
            " FOR EACH ROW EXECUTE FUNCTION keep_ledger_entries()"
        )
        return
    for action in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER keep_ledger_entries_{action.lower()} BEFORE {action} ON ledger_entries"
            " BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        )


def _create_gateway_events() -> None:
    op.create_table(
        "gateway_events",
        sa.Column("event_id", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("occurred_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("received_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("payment_id", sa.String(128), nullable=False),
        sa.Column("refund_id", sa.String(128)),
        sa.Column("order_id", sa.String(128), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("decline_reason", sa.Text()),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("event_id", name="pk_gateway_events"),
        sa.CheckConstraint(
            "kind IN ('charge.captured', 'charge.declined', 'refund.refunded')", name=op.f("ck_gateway_events_kind")
        ),
        sa.CheckConstraint(
            "(kind = 'refund.refunded') = (refund_id IS NOT NULL)", name=op.f("ck_gateway_events_refund_id")
        ),
        sa.CheckConstraint("status IN ('HANDLED', 'REPEATED', 'REFUSED')", name=op.f("ck_gateway_events_status")),
        sa.CheckConstraint("(status = 'REFUSED') = (reason IS NOT NULL)", name=op.f("ck_gateway_events_reason")),
    )
    op.create_index("ix_gateway_events_payment_id", "gateway_events", ["payment_id"])
    op.create_index("ix_gateway_events_status_received_at_ms", "gateway_events", ["status", "received_at_ms"])


def _create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("row_id", _row_id(), nullable=False),
        sa.Column("topic", sa.String(127), nullable=False),
        sa.Column("tag", sa.String(127), nullable=False),
        sa.Column("message_key", sa.String(255), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("row_id", name="pk_outbox"),
    )

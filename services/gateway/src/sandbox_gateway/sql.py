"""The tables of charges, refunds and webhooks, and the unit of work over them, through SQLAlchemy.

Invariants that the database itself holds: what is decided has its moment, and what is declined its reason; the refunds
of a charge are never more than the charge; an event has one row. Migrations bring a database to this schema, and a test
holds that both agree. The SQL is the common part of SQLite and PostgreSQL. Times are wall-clock milliseconds, money is
in minor units.

What is decided is decided by `UPDATE ... WHERE status = 'pending'`, and its row count decides; a decision and its
webhook are written in one unit. No call goes over the network inside a unit. Statements are built once: building one
takes SQLAlchemy longer than SQLite takes to execute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    Row,
    Select,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sandbox_gateway.domain import (
    Attempt,
    Book,
    Charge,
    ChargeStatus,
    ChargeTerms,
    Delivery,
    Event,
    Refund,
    RefundStatus,
    RefundTerms,
    WaitingWebhook,
    WrittenMeanwhileError,
)
from servicekit.sql.database import SqlUnits
from servicekit.sql.rows import row_of, value_of
from servicekit.sql.schema import ROW_ID, new_metadata

ID_LENGTH_MAX = 64
REFUND_ID_LENGTH_MAX = 128
TRACEPARENT_LENGTH = 55  # of version 00

metadata = new_metadata()

# In the text and not bound: only so does the planner see that the index of what is pending will do.
_IS_PENDING = text("status = 'pending'")
_IS_UNSENT = text("copies_sent < copies_wanted")

charges = Table(
    "charges",
    metadata,
    Column("charge_id", String(ID_LENGTH_MAX), primary_key=True),
    Column("order_id", String(ID_LENGTH_MAX), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("method", String(20), nullable=False),
    Column("status", String(10), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("due_at_ms", BigInteger, nullable=False),
    Column("decided_at_ms", BigInteger),
    Column("decline_reason", Text),
    Column("refunds_minor", BigInteger, nullable=False, server_default="0"),  # of its refunds, pending ones too
    Column("traceparent", String(TRACEPARENT_LENGTH)),  # NULL: asked for outside a trace, or of an older version
    CheckConstraint("amount_minor >= 1", name="amount_minor"),
    CheckConstraint("status IN ('pending', 'captured', 'declined')", name="status"),
    CheckConstraint("(status = 'pending') = (decided_at_ms IS NULL)", name="decided_at_ms"),
    CheckConstraint("(status = 'declined') = (decline_reason IS NOT NULL)", name="decline_reason"),
    CheckConstraint("refunds_minor >= 0 AND refunds_minor <= amount_minor", name="refunds_minor"),
    CheckConstraint("refunds_minor = 0 OR status = 'captured'", name="refunds_of_captured"),
    Index("ix_charges_pending", "due_at_ms", sqlite_where=_IS_PENDING, postgresql_where=_IS_PENDING),
)

refunds = Table(
    "refunds",
    metadata,
    Column("refund_id", String(REFUND_ID_LENGTH_MAX), primary_key=True),
    Column("charge_id", ForeignKey(charges.c.charge_id), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("status", String(10), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("due_at_ms", BigInteger, nullable=False),
    Column("refunded_at_ms", BigInteger),
    Column("traceparent", String(TRACEPARENT_LENGTH)),
    CheckConstraint("amount_minor >= 1", name="amount_minor"),
    CheckConstraint("status IN ('pending', 'refunded')", name="status"),
    CheckConstraint("(status = 'pending') = (refunded_at_ms IS NULL)", name="refunded_at_ms"),
    Index(None, "charge_id"),
    Index("ix_refunds_pending", "due_at_ms", sqlite_where=_IS_PENDING, postgresql_where=_IS_PENDING),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("webhook_id", ROW_ID, primary_key=True),
    Column("event_id", String(ID_LENGTH_MAX), nullable=False),
    Column("charge_id", ForeignKey(charges.c.charge_id), nullable=False),
    Column("refund_id", ForeignKey(refunds.c.refund_id)),
    Column("type", String(20), nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("copies_wanted", Integer, nullable=False),  # 0: never sent
    Column("copies_sent", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at_ms", BigInteger, nullable=False),
    Column("holds_order", Boolean, nullable=False),  # waits for earlier ones of its charge
    Column("last_error", Text),
    Column("traceparent", String(TRACEPARENT_LENGTH)),  # of the decision that it tells
    UniqueConstraint("event_id"),
    CheckConstraint("copies_sent >= 0 AND copies_sent <= copies_wanted", name="copies_sent"),
    Index("ix_webhooks_unsent", "next_attempt_at_ms", sqlite_where=_IS_UNSENT, postgresql_where=_IS_UNSENT),
    Index(None, "charge_id", "webhook_id"),
)


def _next_due(table: Table, own_id: str) -> Select[Any]:
    return select(table).where(_IS_PENDING).order_by(table.c.due_at_ms, table.c[own_id]).limit(bindparam("rows_max"))


_ADD_CHARGE = insert(charges)
_FIND_CHARGE = select(charges).where(charges.c.charge_id == bindparam("wanted_id"))
_DECIDE = (
    update(charges)
    .where(charges.c.charge_id == bindparam("wanted_id"), _IS_PENDING)
    .values(
        status=bindparam("new_status"),
        decided_at_ms=bindparam("new_decided_at_ms"),
        decline_reason=bindparam("new_decline_reason"),
    )
)
_SET_ASIDE = (
    update(charges)
    .where(
        charges.c.charge_id == bindparam("wanted_id"),
        charges.c.status == ChargeStatus.CAPTURED,
        charges.c.currency == bindparam("wanted_currency"),
        # No sum that could overflow.
        charges.c.refunds_minor <= charges.c.amount_minor - bindparam("more_minor"),
    )
    .values(refunds_minor=charges.c.refunds_minor + bindparam("more_minor"))
)
_NEXT_DUE_CHARGE = _next_due(charges, "charge_id")
SUM_CAPTURED = select(func.coalesce(func.sum(charges.c.amount_minor), 0), func.count()).where(
    charges.c.status == ChargeStatus.CAPTURED
)


class Charges:
    """The charges."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def find(self, charge_id: str) -> Charge | None:
        row = (await self._connection.execute(_FIND_CHARGE, {"wanted_id": charge_id})).one_or_none()
        return None if row is None else _charge(row)

    async def add(self, charge: Charge) -> None:
        """Raises WrittenMeanwhileError when another request has just written this charge."""
        row = row_of(charge, without=frozenset({"terms"}), **row_of(charge.terms))
        try:
            await self._connection.execute(_ADD_CHARGE, row)
        except IntegrityError as error:
            raise WrittenMeanwhileError("charge", charge.charge_id) from error

    async def decide(self, decided: Charge) -> bool:
        """False, and nothing changed, if the charge was decided before."""
        result = await self._connection.execute(
            _DECIDE,
            {
                "wanted_id": decided.charge_id,
                "new_status": decided.status,
                "new_decided_at_ms": decided.decided_at_ms,
                "new_decline_reason": decided.decline_reason,
            },
        )
        return result.rowcount == 1

    async def set_aside(self, terms: RefundTerms) -> bool:
        """Count a refund against its charge; False if that is not captured or has not so much left of the currency."""
        result = await self._connection.execute(
            _SET_ASIDE,
            {"wanted_id": terms.charge_id, "wanted_currency": terms.currency, "more_minor": terms.amount_minor},
        )
        return result.rowcount == 1

    async def next_due(self, limit: int) -> list[Charge]:
        """At most `limit` PENDING charges, those that are due first before others."""
        return [_charge(row) for row in await self._connection.execute(_NEXT_DUE_CHARGE, {"rows_max": limit})]


def _charge(row: Row[Any]) -> Charge:
    return value_of(Charge, row, terms=value_of(ChargeTerms, row))


_ADD_REFUND = insert(refunds)
_FIND_REFUND = select(refunds).where(refunds.c.refund_id == bindparam("wanted_id"))
_FINISH = (
    update(refunds)
    .where(refunds.c.refund_id == bindparam("wanted_id"), _IS_PENDING)
    .values(status=bindparam("new_status"), refunded_at_ms=bindparam("new_refunded_at_ms"))
)
_NEXT_DUE_REFUND = _next_due(refunds, "refund_id")
SUM_REFUNDED = select(func.coalesce(func.sum(refunds.c.amount_minor), 0), func.count()).where(
    refunds.c.status == RefundStatus.REFUNDED
)


class Refunds:
    """The refunds.

    The row of their charge counts them, and its constraint holds that they are not more than it took.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def find(self, refund_id: str) -> Refund | None:
        row = (await self._connection.execute(_FIND_REFUND, {"wanted_id": refund_id})).one_or_none()
        return None if row is None else _refund(row)

    async def add(self, refund: Refund) -> None:
        """Raises WrittenMeanwhileError when another request has just written this refund."""
        row = row_of(refund, without=frozenset({"terms"}), **row_of(refund.terms))
        try:
            await self._connection.execute(_ADD_REFUND, row)
        except IntegrityError as error:
            raise WrittenMeanwhileError("refund", refund.refund_id) from error

    async def finish(self, refunded: Refund) -> bool:
        """False, and nothing changed, if the money went back before."""
        result = await self._connection.execute(
            _FINISH,
            {
                "wanted_id": refunded.refund_id,
                "new_status": refunded.status,
                "new_refunded_at_ms": refunded.refunded_at_ms,
            },
        )
        return result.rowcount == 1

    async def next_due(self, limit: int) -> list[Refund]:
        """At most `limit` PENDING refunds, those that are due first before others."""
        return [_refund(row) for row in await self._connection.execute(_NEXT_DUE_REFUND, {"rows_max": limit})]


def _refund(row: Row[Any]) -> Refund:
    return value_of(Refund, row, terms=value_of(RefundTerms, row))


ERROR_LENGTH_MAX = 500

_ADD_WEBHOOK = insert(webhooks)
_earlier = webhooks.alias("earlier")
_earlier_was_not_taken = exists().where(
    _earlier.c.charge_id == webhooks.c.charge_id,
    _earlier.c.webhook_id < webhooks.c.webhook_id,
    _earlier.c.copies_sent == 0,
    _earlier.c.copies_wanted > 0,
)
_NEXT_DUE_WEBHOOK = (
    select(
        webhooks.c.webhook_id,
        webhooks.c.event_id,
        webhooks.c.body,
        webhooks.c.attempts,
        webhooks.c.next_attempt_at_ms,
        webhooks.c.traceparent,
    )
    .where(
        webhooks.c.copies_sent < webhooks.c.copies_wanted,
        or_(webhooks.c.holds_order.is_(False), ~_earlier_was_not_taken),
    )
    .order_by(webhooks.c.next_attempt_at_ms, webhooks.c.webhook_id)
    .limit(bindparam("rows_max"))
)
_RECORD = (
    update(webhooks)
    .where(
        webhooks.c.webhook_id == bindparam("wanted_id"),
        webhooks.c.copies_sent + bindparam("taken") <= webhooks.c.copies_wanted,
    )
    .values(
        copies_sent=webhooks.c.copies_sent + bindparam("taken"),
        attempts=webhooks.c.attempts + 1,
        next_attempt_at_ms=bindparam("new_next_attempt_at_ms"),
        last_error=bindparam("new_last_error"),
    )
)


class Webhooks:
    """The webhooks: a row for each event, sent or not, so that nothing that was decided is forgotten."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, event: Event, delivery: Delivery, traceparent: str | None) -> None:
        row = row_of(
            event,
            without=frozenset({"occurred_at_ms"}),
            created_at_ms=event.occurred_at_ms,
            copies_wanted=delivery.copies,
            copies_sent=0,
            attempts=0,
            next_attempt_at_ms=event.occurred_at_ms + delivery.wait_ms,
            holds_order=delivery.holds_order,
            traceparent=traceparent,
        )
        await self._connection.execute(_ADD_WEBHOOK, row)

    async def next_due(self, limit: int) -> list[WaitingWebhook]:
        """At most `limit` that have to be sent and wait for no earlier one, those that are due first before others."""
        rows = await self._connection.execute(_NEXT_DUE_WEBHOOK, {"rows_max": limit})
        return [value_of(WaitingWebhook, row) for row in rows]

    async def record(self, attempts: Sequence[Attempt]) -> None:
        """Write down what came of sending."""
        rows = [
            {
                "wanted_id": attempt.webhook_id,
                "taken": int(attempt.error is None),
                "new_next_attempt_at_ms": attempt.next_attempt_at_ms,
                "new_last_error": None if attempt.error is None else attempt.error[:ERROR_LENGTH_MAX],
            }
            for attempt in attempts
        ]
        await self._connection.execute(_RECORD, rows)


class UnitOfWork:
    """One database transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.charges = Charges(connection)
        self.refunds = Refunds(connection)
        self.webhooks = Webhooks(connection)

    async def book(self) -> Book:
        """The sums of everything that ever happened."""
        captured_minor, captures = (await self._connection.execute(SUM_CAPTURED)).one()
        refunded_minor, refunds = (await self._connection.execute(SUM_REFUNDED)).one()
        return Book(int(captured_minor), int(refunded_minor), captures, refunds)

    async def commit(self) -> None:
        """Make the unit's changes durable; without it they are rolled back."""
        await self._connection.commit()


Units = SqlUnits[UnitOfWork]

"""Charges in SQL. What is decided is decided by `UPDATE ... WHERE status = 'pending'`, and its row count decides.

Statements are built once: building one takes SQLAlchemy longer than SQLite takes to execute it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, bindparam, func, insert, literal_column, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sandbox_gateway.adapters.tables import charges
from sandbox_gateway.domain.charge import Charge, ChargeStatus, ChargeTerms
from sandbox_gateway.domain.errors import WrittenMeanwhileError
from sandbox_gateway.domain.refund import RefundTerms

# In the text and not bound: only so does the planner see that the index of what is pending will do.
_IS_PENDING = charges.c.status == literal_column(f"'{ChargeStatus.PENDING}'")

_ADD = insert(charges)
_FIND = select(charges).where(charges.c.charge_id == bindparam("wanted_id"))
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
_NEXT_DUE = (
    select(charges).where(_IS_PENDING).order_by(charges.c.due_at_ms, charges.c.charge_id).limit(bindparam("rows_max"))
)
SUM_CAPTURED = select(func.coalesce(func.sum(charges.c.amount_minor), 0), func.count()).where(
    charges.c.status == ChargeStatus.CAPTURED
)


class SqlCharges:
    """Implements `Charges`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def find(self, charge_id: str) -> Charge | None:
        row = (await self._connection.execute(_FIND, {"wanted_id": charge_id})).one_or_none()
        return None if row is None else _charge(row)

    async def add(self, charge: Charge) -> None:
        terms = charge.terms
        row = {
            "charge_id": terms.charge_id,
            "order_id": terms.order_id,
            "amount_minor": terms.amount_minor,
            "currency": terms.currency,
            "method": terms.method,
            "status": charge.status,
            "created_at_ms": charge.created_at_ms,
            "due_at_ms": charge.due_at_ms,
            "decided_at_ms": charge.decided_at_ms,
            "decline_reason": charge.decline_reason,
            "traceparent": charge.traceparent,
        }
        try:
            await self._connection.execute(_ADD, row)
        except IntegrityError as error:
            raise WrittenMeanwhileError("charge", charge.charge_id) from error

    async def decide(self, decided: Charge) -> bool:
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
        result = await self._connection.execute(
            _SET_ASIDE,
            {"wanted_id": terms.charge_id, "wanted_currency": terms.currency, "more_minor": terms.amount_minor},
        )
        return result.rowcount == 1

    async def next_due(self, limit: int) -> list[Charge]:
        return [_charge(row) for row in await self._connection.execute(_NEXT_DUE, {"rows_max": limit})]


def _charge(row: Row[Any]) -> Charge:
    return Charge(
        ChargeTerms(row.charge_id, row.order_id, row.amount_minor, row.currency, row.method),
        created_at_ms=row.created_at_ms,
        due_at_ms=row.due_at_ms,
        status=ChargeStatus(row.status),
        decided_at_ms=row.decided_at_ms,
        decline_reason=row.decline_reason,
        traceparent=row.traceparent,
    )

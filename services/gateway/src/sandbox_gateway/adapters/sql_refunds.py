"""Refunds in SQL; the charge's own row counts them, and its constraint holds that they are not more than it took."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, bindparam, func, insert, literal_column, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sandbox_gateway.adapters.tables import refunds
from sandbox_gateway.domain.errors import WrittenMeanwhileError
from sandbox_gateway.domain.refund import Refund, RefundStatus, RefundTerms

# In the text and not bound: only so does the planner see that the index of what is pending will do.
_IS_PENDING = refunds.c.status == literal_column(f"'{RefundStatus.PENDING}'")

_ADD = insert(refunds)
_FIND = select(refunds).where(refunds.c.refund_id == bindparam("wanted_id"))
_FINISH = (
    update(refunds)
    .where(refunds.c.refund_id == bindparam("wanted_id"), _IS_PENDING)
    .values(status=bindparam("new_status"), refunded_at_ms=bindparam("new_refunded_at_ms"))
)
_NEXT_DUE = (
    select(refunds).where(_IS_PENDING).order_by(refunds.c.due_at_ms, refunds.c.refund_id).limit(bindparam("rows_max"))
)
SUM_REFUNDED = select(func.coalesce(func.sum(refunds.c.amount_minor), 0), func.count()).where(
    refunds.c.status == RefundStatus.REFUNDED
)


class SqlRefunds:
    """Implements `Refunds`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def find(self, refund_id: str) -> Refund | None:
        row = (await self._connection.execute(_FIND, {"wanted_id": refund_id})).one_or_none()
        return None if row is None else _refund(row)

    async def add(self, refund: Refund) -> None:
        row = {
            "refund_id": refund.refund_id,
            "charge_id": refund.terms.charge_id,
            "amount_minor": refund.terms.amount_minor,
            "currency": refund.terms.currency,
            "status": refund.status,
            "created_at_ms": refund.created_at_ms,
            "due_at_ms": refund.due_at_ms,
            "refunded_at_ms": refund.refunded_at_ms,
            "traceparent": refund.traceparent,
        }
        try:
            await self._connection.execute(_ADD, row)
        except IntegrityError as error:
            raise WrittenMeanwhileError("refund", refund.refund_id) from error

    async def finish(self, refunded: Refund) -> bool:
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
        return [_refund(row) for row in await self._connection.execute(_NEXT_DUE, {"rows_max": limit})]


def _refund(row: Row[Any]) -> Refund:
    return Refund(
        RefundTerms(row.refund_id, row.charge_id, row.amount_minor, row.currency),
        created_at_ms=row.created_at_ms,
        due_at_ms=row.due_at_ms,
        status=RefundStatus(row.status),
        refunded_at_ms=row.refunded_at_ms,
        traceparent=row.traceparent,
    )

"""Refunds in SQL. A refund ends by `UPDATE ... WHERE status = 'REQUESTED'`, and its row count decides.

That refunds are together never more than their payment took is counted in the payment's row (SqlPayments).
"""

from __future__ import annotations

from sqlalchemy import Row, bindparam, func, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from payments.adapters.tables import refunds
from payments.domain.errors import StatusChangedError
from payments.domain.refund import Refund, RefundStatus
from payments.service.unit_of_work import PageKey, UnfinishedRefund

_ADD = insert(refunds)
_FIND = select(refunds).where(refunds.c.refund_id == bindparam("wanted_id"))
_CHANGE = (
    update(refunds)
    .where(refunds.c.refund_id == bindparam("wanted_id"), refunds.c.status == RefundStatus.REQUESTED)
    .values(status=bindparam("new_status"), refunded_at_ms=bindparam("new_refunded_at_ms"))
)
_COUNT = select(refunds.c.status, func.count()).group_by(refunds.c.status)
_UNFINISHED = (
    select(refunds.c.refund_id, refunds.c.requested_at_ms)
    .where(refunds.c.status == RefundStatus.REQUESTED, refunds.c.refund_id > bindparam("after_id"))
    .order_by(refunds.c.refund_id)
    .limit(bindparam("rows_max"))
)


class SqlRefunds:
    """Implements `Refunds`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, refund: Refund) -> None:
        row = {
            "refund_id": refund.refund_id,
            "payment_id": refund.payment_id,
            "amount_minor": refund.amount_minor,
            "currency": refund.currency,
            "reason": refund.reason,
            "requested_by": refund.requested_by,
            "requested_at_ms": refund.requested_at_ms,
            "status": refund.status,
            "refunded_at_ms": refund.refunded_at_ms,
        }
        try:
            await self._connection.execute(_ADD, row)
        except IntegrityError as error:
            raise StatusChangedError("refund", refund.refund_id) from error

    async def find(self, refund_id: str) -> Refund | None:
        row = (await self._connection.execute(_FIND, {"wanted_id": refund_id})).one_or_none()
        return None if row is None else _refund(row)

    async def change(self, refunded: Refund) -> bool:
        parameters = {
            "wanted_id": refunded.refund_id,
            "new_status": refunded.status,
            "new_refunded_at_ms": refunded.refunded_at_ms,
        }
        return (await self._connection.execute(_CHANGE, parameters)).rowcount == 1

    async def page(self, payment_id: str | None, after: PageKey | None, limit: int) -> list[Refund]:
        query = select(refunds).order_by(refunds.c.requested_at_ms.desc(), refunds.c.refund_id.desc()).limit(limit)
        if payment_id is not None:
            query = query.where(refunds.c.payment_id == payment_id)
        if after is not None:
            query = query.where(tuple_(refunds.c.requested_at_ms, refunds.c.refund_id) < (after.at_ms, after.id))
        return [_refund(row) for row in await self._connection.execute(query)]

    async def count_by_status(self) -> dict[RefundStatus, int]:
        return {RefundStatus(status): count for status, count in await self._connection.execute(_COUNT)}

    async def unfinished(self, after: str, limit: int) -> list[UnfinishedRefund]:
        rows = await self._connection.execute(_UNFINISHED, {"after_id": after, "rows_max": limit})
        return [UnfinishedRefund(row.refund_id, row.requested_at_ms) for row in rows]


def _refund(row: Row[tuple[object, ...]]) -> Refund:
    return Refund(
        refund_id=row.refund_id,
        payment_id=row.payment_id,
        amount_minor=row.amount_minor,
        currency=row.currency,
        reason=row.reason,
        requested_by=row.requested_by,
        requested_at_ms=row.requested_at_ms,
        status=RefundStatus(row.status),
        refunded_at_ms=row.refunded_at_ms,
    )

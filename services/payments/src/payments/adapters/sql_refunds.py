"""Refunds in SQL. A status changes by `UPDATE ... WHERE status = old`, and its row count decides.

That refunds are together never more than their payment took is counted in the payment's row (SqlPayments).
"""

from __future__ import annotations

from sqlalchemy import Row, bindparam, func, insert, select, text, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from payments.adapters.tables import counters, refunds
from payments.domain.errors import StatusChangedError
from payments.domain.refund import Refund, RefundStatus
from payments.service.unit_of_work import PageKey, UnfinishedRefund

_ADD = insert(refunds)
_FIND = select(refunds).where(refunds.c.refund_id == bindparam("wanted_id"))
_CHANGE = (
    update(refunds)
    .where(refunds.c.refund_id == bindparam("wanted_id"), refunds.c.status == bindparam("old_status"))
    .values(
        status=bindparam("new_status"),
        refunded_at_ms=bindparam("new_refunded_at_ms"),
        failure=bindparam("new_failure"),
    )
)
# With the status as text, so that the partial index serves it.
_COUNT_FAILED = select(func.count()).select_from(refunds).where(text("status = 'FAILED'"))
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
            "failure": refund.failure,
        }
        try:
            await self._connection.execute(_ADD, row)
        except IntegrityError as error:
            raise StatusChangedError("refund", refund.refund_id) from error

    async def find(self, refund_id: str) -> Refund | None:
        row = (await self._connection.execute(_FIND, {"wanted_id": refund_id})).one_or_none()
        return None if row is None else _refund(row)

    async def change(self, old_status: RefundStatus, changed: Refund) -> bool:
        parameters = {
            "wanted_id": changed.refund_id,
            "old_status": old_status,
            "new_status": changed.status,
            "new_refunded_at_ms": changed.refunded_at_ms,
            "new_failure": changed.failure,
        }
        return (await self._connection.execute(_CHANGE, parameters)).rowcount == 1

    async def page(
        self, payment_id: str | None, after: PageKey | None, limit: int, status: RefundStatus | None = None
    ) -> list[Refund]:
        query = select(refunds).order_by(refunds.c.requested_at_ms.desc(), refunds.c.refund_id.desc()).limit(limit)
        if payment_id is not None:
            query = query.where(refunds.c.payment_id == payment_id)
        if status is not None:
            query = query.where(text(f"status = '{status}'"))
        if after is not None:
            query = query.where(tuple_(refunds.c.requested_at_ms, refunds.c.refund_id) < (after.at_ms, after.id))
        return [_refund(row) for row in await self._connection.execute(query)]

    async def count_by_status(self) -> dict[RefundStatus, int]:
        return await counters.of_each(self._connection, "refunds/", RefundStatus)

    async def count_failed(self) -> int:
        return (await self._connection.execute(_COUNT_FAILED)).scalar_one()

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
        failure=row.failure,
    )

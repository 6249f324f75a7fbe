"""Refunds in SQL; the primary key is the payment's, so that a second refund of one payment cannot be written."""

from __future__ import annotations

from sqlalchemy import bindparam, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from payments.adapters.tables import payments, refunds
from payments.domain.errors import StatusChangedError
from payments.domain.payment_status import PaymentStatus
from payments.domain.refund import Refund

_ADD = insert(refunds)
_FIND = select(refunds).where(refunds.c.payment_id == bindparam("wanted_id"))
_UNFINISHED = (
    select(refunds.c.payment_id)
    .join(payments)
    .where(payments.c.status == PaymentStatus.CAPTURED, refunds.c.payment_id > bindparam("after_id"))
    .order_by(refunds.c.payment_id)
    .limit(bindparam("rows_max"))
)


class SqlRefunds:
    """Implements `Refunds`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, refund: Refund) -> None:
        row = {
            "payment_id": refund.payment_id,
            "refund_id": refund.refund_id,
            "amount_minor": refund.amount_minor,
            "currency": refund.currency,
            "reason": refund.reason,
            "requested_at_ms": refund.requested_at_ms,
        }
        try:
            await self._connection.execute(_ADD, row)
        except IntegrityError as error:
            raise StatusChangedError("the refund of payment", refund.payment_id) from error

    async def find(self, payment_id: str) -> Refund | None:
        row = (await self._connection.execute(_FIND, {"wanted_id": payment_id})).one_or_none()
        if row is None:
            return None
        return Refund(
            refund_id=row.refund_id,
            payment_id=row.payment_id,
            amount_minor=row.amount_minor,
            currency=row.currency,
            reason=row.reason,
            requested_at_ms=row.requested_at_ms,
        )

    async def unfinished(self, after: str, limit: int) -> list[str]:
        rows = await self._connection.execute(_UNFINISHED, {"after_id": after, "rows_max": limit})
        return [row.payment_id for row in rows]

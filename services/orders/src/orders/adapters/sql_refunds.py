"""Refund requests in SQL; the primary key decides who asks first."""

from __future__ import annotations

from sqlalchemy import bindparam, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from orders.adapters.tables import counters, refund_requests
from orders.domain.errors import RefundRequestedError
from orders.domain.payment import RefundRequest

_FIND = select(refund_requests.c.payment_id).where(refund_requests.c.payment_id == bindparam("wanted_id"))
_REQUEST = insert(refund_requests)


class SqlRefunds:
    """Implements `Refunds`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def is_requested(self, payment_id: str) -> bool:
        return (await self._connection.execute(_FIND, {"wanted_id": payment_id})).one_or_none() is not None

    async def request(self, refund: RefundRequest, at_ms: int) -> None:
        payment = refund.payment
        row = {
            "payment_id": payment.payment_id,
            "order_id": payment.order_id,
            "amount_minor": payment.amount_minor,
            "currency": payment.currency,
            "reason": refund.reason,
            "requested_at_ms": at_ms,
        }
        try:
            await self._connection.execute(_REQUEST, row)
        except IntegrityError as error:
            # The order was read before; what is left is the primary key.
            raise RefundRequestedError(payment.payment_id) from error

    async def count(self) -> int:
        return await counters.value(self._connection, "refund-requests")

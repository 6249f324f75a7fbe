"""Payable orders in SQL."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Row, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from payments.adapters.tables import payable_orders
from payments.domain.errors import StatusChangedError
from payments.domain.payable_order import PayableOrder, PayableStatus, Terms

_ADD = insert(payable_orders)
_FIND = select(payable_orders).where(payable_orders.c.order_id == bindparam("wanted_id"))
_FIND_ALL = select(payable_orders).where(payable_orders.c.order_id.in_(bindparam("wanted_ids", expanding=True)))
_CHANGE = (
    update(payable_orders)
    .where(payable_orders.c.order_id == bindparam("wanted_id"), payable_orders.c.status == bindparam("old_status"))
    .values(
        status=bindparam("status"),
        buyer_id=bindparam("buyer_id"),
        total_minor=bindparam("total_minor"),
        currency=bindparam("currency"),
        expires_at_ms=bindparam("expires_at_ms"),
        traceparent=bindparam("traceparent"),
    )
)


class SqlPayableOrders:
    """Implements `PayableOrdersTable`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def find(self, order_id: str) -> PayableOrder | None:
        row = (await self._connection.execute(_FIND, {"wanted_id": order_id})).one_or_none()
        return None if row is None else _order(row)

    async def find_all(self, order_ids: Collection[str]) -> dict[str, PayableOrder]:
        rows = await self._connection.execute(_FIND_ALL, {"wanted_ids": list(order_ids)})
        return {row.order_id: _order(row) for row in rows}

    async def add(self, order: PayableOrder) -> None:
        try:
            await self._connection.execute(_ADD, {"order_id": order.order_id} | _values(order))
        except IntegrityError as error:
            raise StatusChangedError("order", order.order_id) from error

    async def change(self, old_status: PayableStatus, order: PayableOrder) -> bool:
        parameters = {"wanted_id": order.order_id, "old_status": old_status} | _values(order)
        result = await self._connection.execute(_CHANGE, parameters)
        return result.rowcount == 1


def _order(row: Row[tuple[object, ...]]) -> PayableOrder:
    terms = None
    if row.buyer_id is not None:
        terms = Terms(row.buyer_id, row.total_minor, row.currency, row.expires_at_ms)
    return PayableOrder(row.order_id, PayableStatus(row.status), terms, row.traceparent)


def _values(order: PayableOrder) -> dict[str, Any]:
    terms = order.terms
    return {
        "status": order.status,
        "buyer_id": None if terms is None else terms.buyer_id,
        "total_minor": None if terms is None else terms.total_minor,
        "currency": None if terms is None else terms.currency,
        "expires_at_ms": None if terms is None else terms.expires_at_ms,
        "traceparent": order.traceparent,
    }

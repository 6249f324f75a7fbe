"""Orders in SQL. A status changes by `UPDATE ... WHERE status = old`, and its row count decides (bug zoo 33)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Row, bindparam, func, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from orders.adapters.tables import order_history, order_lines, orders
from orders.domain.errors import UnknownOrderError
from orders.domain.order import Order, OrderLine, StatusChange
from orders.domain.order_status import ChangeReason, OrderStatus
from orders.service.unit_of_work import OrderFilter, PageKey

# Built once, as in sql_products.py.
_ADD_ORDER = insert(orders)
_ADD_LINES = insert(order_lines)
_ADD_HISTORY = insert(order_history)
_GET = select(orders).where(orders.c.order_id == bindparam("wanted_id"))
_LINES_OF = (
    select(order_lines)
    .where(order_lines.c.order_id.in_(bindparam("wanted_ids", expanding=True)))
    .order_by(order_lines.c.order_id, order_lines.c.line_number)
)
_CHANGE_STATUS = (
    update(orders)
    .where(orders.c.order_id == bindparam("wanted_id"), orders.c.status == bindparam("old_status"))
    .values(
        status=bindparam("new_status"),
        closed_at_ms=bindparam("new_closed_at_ms"),
        payment_id=bindparam("new_payment_id"),
        paid_at_ms=bindparam("new_paid_at_ms"),
    )
)


class SqlOrders:
    """Implements `Orders`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, order: Order, first: StatusChange) -> None:
        row = {
            "order_id": order.order_id,
            "buyer_id": order.buyer_id,
            "status": order.status,
            "total_minor": order.total_minor,
            "currency": order.currency,
            "created_at_ms": order.created_at_ms,
            "expires_at_ms": order.expires_at_ms,
            "closed_at_ms": order.closed_at_ms,
            "payment_id": order.payment_id,
            "paid_at_ms": order.paid_at_ms,
        }
        lines = [
            {
                "order_id": order.order_id,
                "line_number": number,
                "product_id": line.product_id,
                "quantity": line.quantity,
                "unit_price_minor": line.unit_price_minor,
            }
            for number, line in enumerate(order.lines, 1)
        ]
        await self._connection.execute(_ADD_ORDER, row)
        await self._connection.execute(_ADD_LINES, lines)
        await self._add_history(first)

    async def get(self, order_id: str) -> Order:
        row = (await self._connection.execute(_GET, {"wanted_id": order_id})).one_or_none()
        if row is None:
            raise UnknownOrderError(order_id)
        (order,) = await self._with_lines([row])
        return order

    async def page(self, wanted: OrderFilter, after: PageKey | None, limit: int) -> list[Order]:
        query = select(orders).order_by(orders.c.created_at_ms.desc(), orders.c.order_id.desc()).limit(limit)
        if wanted.buyer_id is not None:
            query = query.where(orders.c.buyer_id == wanted.buyer_id)
        if wanted.status is not None:
            query = query.where(orders.c.status == wanted.status)
        if after is not None:
            place = tuple_(orders.c.created_at_ms, orders.c.order_id)
            query = query.where(place < (after.created_at_ms, after.order_id))
        return await self._with_lines((await self._connection.execute(query)).all())

    async def change_status(self, order: Order, change: StatusChange) -> bool:
        result = await self._connection.execute(
            _CHANGE_STATUS,
            {
                "wanted_id": change.order_id,
                "old_status": change.old_status,
                "new_status": change.new_status,
                "new_closed_at_ms": order.closed_at_ms,
                "new_payment_id": order.payment_id,
                "new_paid_at_ms": order.paid_at_ms,
            },
        )
        if result.rowcount != 1:
            return False
        await self._add_history(change)
        return True

    async def history(self, order_id: str) -> list[StatusChange]:
        rows = await self._connection.execute(
            select(order_history).where(order_history.c.order_id == order_id).order_by(order_history.c.change_id)
        )
        return [_change(row) for row in rows]

    async def count_by_status(self) -> dict[OrderStatus, int]:
        rows = await self._connection.execute(select(orders.c.status, func.count()).group_by(orders.c.status))
        return {OrderStatus(status): count for status, count in rows}

    async def count_paid(self) -> int:
        query = select(func.count()).select_from(orders).where(orders.c.payment_id.is_not(None))
        return (await self._connection.execute(query)).scalar_one()

    async def _add_history(self, change: StatusChange) -> None:
        row = {
            "order_id": change.order_id,
            "old_status": change.old_status,
            "new_status": change.new_status,
            "reason": change.reason,
            "at_ms": change.at_ms,
        }
        await self._connection.execute(_ADD_HISTORY, row)

    async def _with_lines(self, rows: Sequence[Row[tuple[object, ...]]]) -> list[Order]:
        lines: dict[str, list[OrderLine]] = defaultdict(list)
        for row in await self._connection.execute(_LINES_OF, {"wanted_ids": [row.order_id for row in rows]}):
            lines[row.order_id].append(OrderLine(row.product_id, row.quantity, row.unit_price_minor))
        return [_order(row, tuple(lines[row.order_id])) for row in rows]


def _order(row: Row[tuple[object, ...]], lines: tuple[OrderLine, ...]) -> Order:
    return Order(
        order_id=row.order_id,
        buyer_id=row.buyer_id,
        lines=lines,
        total_minor=row.total_minor,
        currency=row.currency,
        status=OrderStatus(row.status),
        created_at_ms=row.created_at_ms,
        expires_at_ms=row.expires_at_ms,
        closed_at_ms=row.closed_at_ms,
        payment_id=row.payment_id,
        paid_at_ms=row.paid_at_ms,
    )


def _change(row: Row[tuple[object, ...]]) -> StatusChange:
    return StatusChange(
        order_id=row.order_id,
        old_status=None if row.old_status is None else OrderStatus(row.old_status),
        new_status=OrderStatus(row.new_status),
        reason=ChangeReason(row.reason),
        at_ms=row.at_ms,
    )

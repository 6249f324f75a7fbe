"""The repositories of orders and their unit of work, through SQLAlchemy.

A status changes by `UPDATE ... WHERE status = old AND version = old`, and its row count decides (bug zoo 33). So does
the hold that a payment has on the order: a use case that has read another one reads again.

Each statement costs a round trip on PostgreSQL: an order comes in one with its lines, and `order_writes` writes it in
one. Statements are built once: building one takes SQLAlchemy longer than SQLite takes to execute it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from sqlalchemy import Row, Select, and_, bindparam, func, insert, select, true, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from orders.adapters.order_writes import AS_IT_WAS_READ, OrderWriter, as_it_was_read
from orders.adapters.tables import (
    counters,
    idempotency_keys,
    inbox,
    order_history,
    order_lines,
    orders,
    products,
    refund_requests,
    transactions,
)
from orders.domain.errors import (
    ProductExistsError,
    RefundRequestedError,
    StatusChangedError,
    UnknownOrderError,
    UnknownProductError,
)
from orders.domain.order import Order, OrderLine, OrderStatus, PaymentHold, RefundRequest, StatusChange
from orders.domain.product import Product
from orders.service.use_case import OrderFilter, PageKey, StockSums
from servicekit.sql.rows import row_of, value_of
from servicekit.sql.tables import SqlInbox, SqlTransactionRows
from servicekit.sql.units import KeyClaim

_KEYS = idempotency_keys.table
_ONE_ROW = select(true().label("always")).subquery("one_row")  # also when there is neither key nor product
_BEFORE_PLACING = select(_KEYS.c.fingerprint, _KEYS.c.order_id, products).select_from(
    _ONE_ROW.outerjoin(
        _KEYS, and_(_KEYS.c.subject == bindparam("wanted_subject"), _KEYS.c.idempotency_key == bindparam("wanted_key"))
    ).outerjoin(products, products.c.product_id.in_(bindparam("wanted_ids", expanding=True)))
)
_GET = (
    select(orders, order_lines.c.product_id, order_lines.c.quantity, order_lines.c.unit_price_minor)
    .join(order_lines)
    .where(orders.c.order_id == bindparam("wanted_id"))
    .order_by(order_lines.c.line_number)
)
_LINES_OF = (
    select(order_lines)
    .where(order_lines.c.order_id.in_(bindparam("wanted_ids", expanding=True)))
    .order_by(order_lines.c.order_id, order_lines.c.line_number)
)
_SET_HOLD = (
    update(orders)
    .where(*AS_IT_WAS_READ)
    .values(hold_payment_id=bindparam("new_hold_payment_id"), hold_until_ms=bindparam("new_hold_until_ms"))
)
_HISTORY = (
    select(order_history).where(order_history.c.order_id == bindparam("wanted_id")).order_by(order_history.c.change_id)
)


class SqlOrders:
    """Implements `Orders`."""

    def __init__(self, connection: AsyncConnection, begun: SqlTransactionRows) -> None:
        self._connection = connection
        writer = OrderWriter(connection, begun)
        self.place, self.change_status = writer.place, writer.change

    async def before_placing(
        self, buyer_id: str, key: str, product_ids: Collection[str]
    ) -> tuple[KeyClaim | None, dict[str, Product]]:
        wanted = {"wanted_subject": buyer_id, "wanted_key": key, "wanted_ids": list(product_ids)}
        rows = (await self._connection.execute(_BEFORE_PLACING, wanted)).all()
        first = rows[0]
        earlier = None if first.order_id is None else KeyClaim(buyer_id, key, first.fingerprint, first.order_id)
        return earlier, {row.product_id: value_of(Product, row) for row in rows if row.product_id is not None}

    async def get(self, order_id: str) -> Order:
        rows = (await self._connection.execute(_GET, {"wanted_id": order_id})).all()
        if not rows:
            raise UnknownOrderError(order_id)
        return _order(rows[0], tuple(value_of(OrderLine, row) for row in rows))

    async def page(self, wanted: OrderFilter, after: PageKey | None, limit: int) -> list[Order]:
        query = select(orders).order_by(orders.c.created_at_ms.desc(), orders.c.order_id.desc()).limit(limit)
        query = _filtered(query, wanted)
        if after is not None:
            place = tuple_(orders.c.created_at_ms, orders.c.order_id)
            query = query.where(place < (after.created_at_ms, after.order_id))
        return await self._with_lines((await self._connection.execute(query)).all())

    async def set_hold(self, order: Order, hold: PaymentHold | None) -> None:
        parameters = as_it_was_read(order, order.status, order.version) | {
            "new_hold_payment_id": None if hold is None else hold.payment_id,
            "new_hold_until_ms": None if hold is None else hold.until_ms,
        }
        if (await self._connection.execute(_SET_HOLD, parameters)).rowcount != 1:
            raise StatusChangedError(order.order_id)

    async def history(self, order_id: str) -> list[StatusChange]:
        rows = await self._connection.execute(_HISTORY, {"wanted_id": order_id})
        return [value_of(StatusChange, row) for row in rows]

    async def count_by_status(self) -> dict[OrderStatus, int]:
        return await counters.of_each(self._connection, "orders/", OrderStatus)

    async def count_paid(self) -> int:
        return await counters.value(self._connection, "paid-orders")

    async def _with_lines(self, rows: Sequence[Row[tuple[object, ...]]]) -> list[Order]:
        lines: dict[str, list[OrderLine]] = defaultdict(list)
        for row in await self._connection.execute(_LINES_OF, {"wanted_ids": [row.order_id for row in rows]}):
            lines[row.order_id].append(value_of(OrderLine, row))
        return [_order(row, tuple(lines[row.order_id])) for row in rows]


def _filtered(query: Select[tuple[object, ...]], wanted: OrderFilter) -> Select[tuple[object, ...]]:
    if wanted.buyer_id is not None:
        query = query.where(orders.c.buyer_id == wanted.buyer_id)
    if wanted.status is not None:
        query = query.where(orders.c.status == wanted.status)
    if wanted.created_from_ms is not None:
        query = query.where(orders.c.created_at_ms >= wanted.created_from_ms)
    if wanted.created_before_ms is not None:
        query = query.where(orders.c.created_at_ms < wanted.created_before_ms)
    return query


def _order(row: Row[tuple[object, ...]], lines: tuple[OrderLine, ...]) -> Order:
    hold = None if row.hold_payment_id is None else PaymentHold(row.hold_payment_id, row.hold_until_ms)
    return value_of(Order, row, lines=lines, hold=hold)


_ADD_PRODUCT = insert(products)
_FIND = select(products).where(products.c.product_id.in_(bindparam("wanted_ids", expanding=True)))
# Orders that refer to the row need not wait for it.
_GET_LOCKED = select(products).where(products.c.product_id == bindparam("wanted_id")).with_for_update(key_share=True)
_CHANGE = (
    update(products)
    .where(products.c.product_id == bindparam("wanted_id"))
    .values(
        price_minor=bindparam("new_price_minor"),
        available=bindparam("new_available"),
        is_on_sale=bindparam("new_is_on_sale"),
        version=bindparam("new_version"),
    )
)


class SqlProducts:
    """Implements `Products`.

    Statements are built once: building one takes SQLAlchemy longer than SQLite takes to execute it.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, product: Product) -> None:
        try:
            await self._connection.execute(_ADD_PRODUCT, row_of(product))
        except IntegrityError as error:
            # The other constraints are the domain's invariants; what is left is the primary key.
            raise ProductExistsError(product.product_id) from error

    async def find(self, product_ids: Collection[str]) -> dict[str, Product]:
        rows = await self._connection.execute(_FIND, {"wanted_ids": list(product_ids)})
        return {row.product_id: value_of(Product, row) for row in rows}

    async def page(self, after: str | None, limit: int, *, is_on_sale: bool | None = None) -> list[Product]:
        query = select(products).order_by(products.c.product_id).limit(limit)
        if is_on_sale is not None:
            query = query.where(products.c.is_on_sale == is_on_sale)
        if after is not None:
            query = query.where(products.c.product_id > after)
        return [value_of(Product, row) for row in await self._connection.execute(query)]

    async def get_locked(self, product_id: str) -> Product:
        row = (await self._connection.execute(_GET_LOCKED, {"wanted_id": product_id})).one_or_none()
        if row is None:
            raise UnknownProductError(product_id)
        return value_of(Product, row)

    async def change(self, product: Product) -> None:
        parameters = {
            "wanted_id": product.product_id,
            "new_price_minor": product.price_minor,
            "new_available": product.available,
            "new_is_on_sale": product.is_on_sale,
            "new_version": product.version,
        }
        await self._connection.execute(_CHANGE, parameters)

    async def stock_sums(self) -> StockSums:
        row = (
            await self._connection.execute(
                select(
                    func.coalesce(func.sum(products.c.available), 0),
                    func.coalesce(func.sum(products.c.reserved), 0),
                    func.coalesce(func.sum(products.c.sold), 0),
                )
            )
        ).one()
        return StockSums(*(int(units) for units in row))


_FIND_REFUND = select(refund_requests.c.payment_id).where(refund_requests.c.payment_id == bindparam("wanted_id"))
_REQUEST = insert(refund_requests)


class SqlRefunds:
    """Implements `Refunds`.

    Refund requests in SQL; the primary key decides which request is first.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def is_requested(self, payment_id: str) -> bool:
        return (await self._connection.execute(_FIND_REFUND, {"wanted_id": payment_id})).one_or_none() is not None

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


class SqlUnitOfWork:
    """Implements `UnitOfWork`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.products = SqlProducts(connection)
        self.transactions = SqlTransactionRows(transactions, connection)
        self.orders = SqlOrders(connection, self.transactions)
        self.refunds = SqlRefunds(connection)
        self.keys = idempotency_keys.of(connection)
        self.inbox = SqlInbox(inbox, connection)

    async def commit(self) -> None:
        await self._connection.commit()

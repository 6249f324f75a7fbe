"""The products, the refunds that were asked for, and the unit of work, through SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Row, Update, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from orders.adapters.sql_orders import SqlOrders
from orders.adapters.tables import counters, idempotency_keys, inbox, products, refund_requests, transactions
from orders.domain.errors import ProductExistsError, RefundRequestedError, UnknownProductError
from orders.domain.order import RefundRequest
from orders.domain.product import Product
from orders.service.unit_of_work import StockSums
from servicekit.sql.tables import SqlInbox, SqlTransactionRows

# ----------------------------------------------------------------------------------------------------------------------
# Products in SQL. Units move by one conditional UPDATE each, and its row count decides.
#
# Statements are built once: building one takes SQLAlchemy longer than SQLite takes to execute it.


_ADD = insert(products)
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
_RESERVE = (
    update(products)
    .where(
        products.c.product_id == bindparam("wanted_id"),
        products.c.available >= bindparam("units"),
        products.c.is_on_sale,
        products.c.price_minor == bindparam("wanted_price_minor"),
    )
    .values(available=products.c.available - bindparam("units"), reserved=products.c.reserved + bindparam("units"))
)
_RELEASE = (
    update(products)
    .where(products.c.product_id == bindparam("wanted_id"), products.c.reserved >= bindparam("units"))
    .values(available=products.c.available + bindparam("units"), reserved=products.c.reserved - bindparam("units"))
)
_SELL = (
    update(products)
    .where(products.c.product_id == bindparam("wanted_id"), products.c.reserved >= bindparam("units"))
    .values(reserved=products.c.reserved - bindparam("units"), sold=products.c.sold + bindparam("units"))
)
_TAKE_BACK = (
    update(products)
    .where(products.c.product_id == bindparam("wanted_id"), products.c.sold >= bindparam("units"))
    .values(available=products.c.available + bindparam("units"), sold=products.c.sold - bindparam("units"))
)


class SqlProducts:
    """Implements `Products`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, product: Product) -> None:
        row = {
            "product_id": product.product_id,
            "name": product.name,
            "price_minor": product.price_minor,
            "currency": product.currency,
            "available": product.available,
            "reserved": product.reserved,
            "sold": product.sold,
            "is_on_sale": product.is_on_sale,
            "version": product.version,
        }
        try:
            await self._connection.execute(_ADD, row)
        except IntegrityError as error:
            # The other constraints are the domain's invariants; what is left is the primary key.
            raise ProductExistsError(product.product_id) from error

    async def find(self, product_ids: Collection[str]) -> dict[str, Product]:
        rows = await self._connection.execute(_FIND, {"wanted_ids": list(product_ids)})
        return {row.product_id: _product(row) for row in rows}

    async def page(self, after: str | None, limit: int, *, is_on_sale: bool | None = None) -> list[Product]:
        query = select(products).order_by(products.c.product_id).limit(limit)
        if is_on_sale is not None:
            query = query.where(products.c.is_on_sale == is_on_sale)
        if after is not None:
            query = query.where(products.c.product_id > after)
        return [_product(row) for row in await self._connection.execute(query)]

    async def get_locked(self, product_id: str) -> Product:
        row = (await self._connection.execute(_GET_LOCKED, {"wanted_id": product_id})).one_or_none()
        if row is None:
            raise UnknownProductError(product_id)
        return _product(row)

    async def change(self, product: Product) -> None:
        parameters = {
            "wanted_id": product.product_id,
            "new_price_minor": product.price_minor,
            "new_available": product.available,
            "new_is_on_sale": product.is_on_sale,
            "new_version": product.version,
        }
        await self._connection.execute(_CHANGE, parameters)

    async def reserve(self, product_id: str, quantity: int, price_minor: int) -> bool:
        parameters = {"wanted_id": product_id, "units": quantity, "wanted_price_minor": price_minor}
        result = await self._connection.execute(_RESERVE, parameters)
        return result.rowcount == 1

    async def release(self, product_id: str, quantity: int) -> None:
        await self._move(_RELEASE, product_id, quantity, "reserved")

    async def sell(self, product_id: str, quantity: int) -> None:
        await self._move(_SELL, product_id, quantity, "reserved")

    async def take_back(self, product_id: str, quantity: int) -> None:
        await self._move(_TAKE_BACK, product_id, quantity, "sold")

    async def _move(self, statement: Update, product_id: str, quantity: int, place: str) -> None:
        result = await self._connection.execute(statement, {"wanted_id": product_id, "units": quantity})
        if result.rowcount != 1:
            raise RuntimeError(f"an order holds {quantity} of {product_id!r}, and fewer are {place}")

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


def _product(row: Row[tuple[object, ...]]) -> Product:
    return Product(
        product_id=row.product_id,
        name=row.name,
        price_minor=row.price_minor,
        currency=row.currency,
        available=row.available,
        reserved=row.reserved,
        sold=row.sold,
        is_on_sale=row.is_on_sale,
        version=row.version,
    )


# ----------------------------------------------------------------------------------------------------------------------
# Refund requests in SQL; the primary key decides who asks first.


_FIND_REFUND = select(refund_requests.c.payment_id).where(refund_requests.c.payment_id == bindparam("wanted_id"))
_REQUEST = insert(refund_requests)


class SqlRefunds:
    """Implements `Refunds`."""

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


# ----------------------------------------------------------------------------------------------------------------------
# A unit of work over a database connection.


class SqlUnitOfWork:
    """Implements `UnitOfWork`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.products = SqlProducts(connection)
        self.orders = SqlOrders(connection)
        self.refunds = SqlRefunds(connection)
        self.keys = idempotency_keys.of(connection)
        self.transactions = SqlTransactionRows(transactions, connection)
        self.inbox = SqlInbox(inbox, connection)

    async def commit(self) -> None:
        await self._connection.commit()

"""Writes an order with all that belongs to it: its lines, its history, the key that made it, and its units.

On PostgreSQL that is one statement, and the row of the unit's transaction is a part of it: each statement costs a round
trip, which takes longer than its rows. Its text is the same for any number of lines, so that it is prepared once. On
SQLite a statement of a writing unit costs next to nothing, and each table has its own.

Invariants: units move with the status (domain/order.py), and only as many as are there; a key is claimed before the
stock is looked at, so that of two requests with one key the second meets the key; rows of products are locked in the
order of their ids, so that no two orders wait for each other's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    BindParameter,
    ColumnElement,
    Insert,
    Integer,
    Select,
    String,
    Table,
    Update,
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from orders.adapters.tables import idempotency_keys, order_history, order_lines, orders, products, transactions
from orders.domain.errors import StatusChangedError
from orders.domain.order import RESERVATION, UNIT_MOVES, Order, StatusChange, UnitMove
from servicekit.errors import RequestInFlightError
from servicekit.sql.tables import SqlTransactionRows, insert_begun, rows_of_arrays
from servicekit.sql.units import KeyClaim

# What is said of a new order, and what changes with its status; the other columns are NULL at first.
_NEW = (
    "order_id",
    "buyer_id",
    "status",
    "total_minor",
    "currency",
    "created_at_ms",
    "expires_at_ms",
    "version",
    "traceparent",
)
_CHANGING = ("status", "version", "closed_at_ms", "payment_id", "paid_at_ms", "shipped_at_ms", "completed_at_ms")
_LINE = ("order_id", "line_number", "product_id", "quantity", "unit_price_minor")
_HISTORY = ("order_id", "old_status", "new_status", "reason", "at_ms", "actor", "trace_id")
_KEY = ("subject", "idempotency_key", "fingerprint", "order_id", "created_at_ms")

AS_IT_WAS_READ = (
    orders.c.order_id == bindparam("wanted_id"),
    orders.c.status == bindparam("old_status"),
    orders.c.version == bindparam("old_version"),
    orders.c.hold_payment_id.is_not_distinct_from(bindparam("old_hold_payment_id")),
    orders.c.hold_until_ms.is_not_distinct_from(bindparam("old_hold_until_ms")),
)


def as_it_was_read(order: Order, status: str, version: int) -> dict[str, object]:
    """The parameters of AS_IT_WAS_READ; a hold changes by itself, and not with a status."""
    return {
        "wanted_id": order.order_id,
        "old_status": status,
        "old_version": version,
        "old_hold_payment_id": None if order.hold is None else order.hold.payment_id,
        "old_hold_until_ms": None if order.hold is None else order.hold.until_ms,
    }


def _value(table: Table, name: str) -> BindParameter[Any]:
    """A parameter of that column's type. In one statement, columns of one name have one value."""
    return bindparam(f"row_{name}", type_=table.c[name].type)


def _insert(table: Table, names: Iterable[str]) -> Insert:
    # `inline`: the number that the row gets is not needed.
    return insert(table).inline().values({name: _value(table, name) for name in names})


def _moved(move: UnitMove, units: ColumnElement[int]) -> dict[str, ColumnElement[int]]:
    return {move.source: products.c[move.source] - units, move.target: products.c[move.target] + units}


def _move_one(move: UnitMove) -> Update:
    product_id, units = _value(order_lines, "product_id"), _value(order_lines, "quantity")
    moving = update(products).where(products.c.product_id == product_id, products.c[move.source] >= units)
    return moving.values(_moved(move, units))


_INSERT_ORDER = _insert(orders, _NEW)
_INSERT_LINE = _insert(order_lines, _LINE)
_INSERT_HISTORY = _insert(order_history, _HISTORY)
_INSERT_KEY = _insert(idempotency_keys.table, _KEY)
_CHANGE = update(orders).where(*AS_IT_WAS_READ).values({name: bindparam(f"new_{name}") for name in _CHANGING})
_MOVE_ONE = {move: _move_one(move) for move in UNIT_MOVES}
_RESERVE_ONE = _MOVE_ONE[RESERVATION].where(
    products.c.is_on_sale, products.c.price_minor == _value(order_lines, "unit_price_minor")
)


def _given_lines() -> CTE:
    given = rows_of_arrays(line_numbers=Integer, product_ids=String, quantities=BigInteger, prices_minor=BigInteger)
    return select(given).cte("lines")


def _move_all(move: UnitMove, lines: CTE, *conditions: ColumnElement[bool]) -> Update:
    """Returns the products whose units were moved."""
    locked = (
        select(products.c.product_id, lines.c.quantities)
        .where(products.c.product_id == lines.c.product_ids, products.c[move.source] >= lines.c.quantities, *conditions)
        .order_by(products.c.product_id)
        .with_for_update(of=products, key_share=True)
        .cte("locked")
    )
    moving = update(products).where(products.c.product_id == locked.c.product_id)
    return moving.values(_moved(move, locked.c.quantities)).returning(products.c.product_id)


def _place_at_once() -> Update:
    lines = _given_lines()
    claimed = _INSERT_KEY.returning(idempotency_keys.table.c.subject).cte("claimed")
    is_as_read = (products.c.is_on_sale, products.c.price_minor == lines.c.prices_minor)
    return _move_all(RESERVATION, lines, exists(select(claimed.c.subject)), *is_as_read).add_cte(
        insert_begun(transactions).cte("begun"),
        _INSERT_ORDER.cte("new_order"),
        insert(order_lines).from_select(_LINE, select(_value(orders, "order_id"), lines)).cte("new_lines"),
        _INSERT_HISTORY.cte("new_history"),
    )


def _count(rows: CTE) -> ColumnElement[int]:
    return select(func.count()).select_from(rows).scalar_subquery()


def _change_at_once(move: UnitMove | None) -> Select[int, int]:
    """How many orders were changed, which is 1 or 0, and of how many products units were moved."""
    changed = _CHANGE.returning(orders.c.order_id).cte("changed")
    history = select(changed.c.order_id, *(_value(order_history, name) for name in _HISTORY[1:]))
    moved: ColumnElement[int] = literal_column("0", BigInteger)
    if move is not None:
        moving = _move_all(move, _given_lines(), exists(select(changed.c.order_id))).cte("moved")
        moved = _count(moving)
    return select(_count(changed), moved).add_cte(
        insert_begun(transactions).cte("begun"),
        insert(order_history).from_select(_HISTORY, history).cte("new_history"),
    )


# Built once: building a statement takes SQLAlchemy longer than a database takes to execute it.
_PLACE_AT_ONCE = _place_at_once()
_CHANGE_AT_ONCE = {move: _change_at_once(move) for move in (None, *UNIT_MOVES)}


class OrderWriter:
    """Writes in a unit of work; `begun` has its transactions."""

    def __init__(self, connection: AsyncConnection, begun: SqlTransactionRows) -> None:
        self._connection = connection
        self._begun = begun

    async def place(self, order: Order, first: StatusChange, claim: KeyClaim) -> set[str]:
        """Write the order; returns the products that cannot give their units.

        Raises RequestInFlightError, and TransactionGivenUpError.
        """
        row = _history_row(first) | {f"row_{name}": getattr(order, name) for name in _NEW}
        row |= {f"row_{name}": value for name, value in idempotency_keys.row(claim, order.created_at_ms).items()}
        try:
            if self._is_postgresql:
                moved = (await self._begun.execute(_PLACE_AT_ONCE, row | _line_arrays(order))).scalars()
                return {line.product_id for line in order.lines}.difference(moved)
            for statement in (_INSERT_KEY, _INSERT_ORDER, _INSERT_HISTORY):
                await self._connection.execute(statement, row)
        except IntegrityError as error:
            # The other constraints are the domain's invariants; what is left is the primary key of the keys.
            raise RequestInFlightError(claim.key) from error
        await self._connection.execute(_INSERT_LINE, _line_rows(order))
        return await self._move_one_by_one(_RESERVE_ONE, order)

    async def change(self, order: Order, change: StatusChange) -> None:
        """Write `order` as it is after `change`. Raises StatusChangedError, and TransactionGivenUpError."""
        parameters = as_it_was_read(order, str(change.old_status), order.version - 1) | _history_row(change)
        parameters |= {f"new_{name}": getattr(order, name) for name in _CHANGING}
        move = change.unit_move
        have_moved = True
        if self._is_postgresql:
            lines = {} if move is None else _line_arrays(order)
            changed, moved = (await self._begun.execute(_CHANGE_AT_ONCE[move], parameters | lines)).one()
            have_moved = move is None or moved == len(order.lines)
        elif changed := (await self._connection.execute(_CHANGE, parameters)).rowcount:
            await self._connection.execute(_INSERT_HISTORY, parameters)
            have_moved = move is None or not await self._move_one_by_one(_MOVE_ONE[move], order)
        if not changed:
            raise StatusChangedError(order.order_id)
        if not have_moved:
            raise RuntimeError(f"the order {order.order_id!r} has more units than its products say")

    @property
    def _is_postgresql(self) -> bool:
        return self._connection.dialect.name == "postgresql"

    async def _move_one_by_one(self, statement: Update, order: Order) -> set[str]:
        """The products whose units were not moved."""
        return {
            line["row_product_id"]
            for line in _line_rows(order)
            if (await self._connection.execute(statement, line)).rowcount != 1
        }


def _line_rows(order: Order) -> list[dict[str, Any]]:
    return [
        {
            "row_order_id": order.order_id,
            "row_line_number": number,
            "row_product_id": line.product_id,
            "row_quantity": line.quantity,
            "row_unit_price_minor": line.unit_price_minor,
        }
        for number, line in enumerate(order.lines, 1)
    ]


def _line_arrays(order: Order) -> dict[str, object]:
    return {
        "line_numbers": list(range(1, len(order.lines) + 1)),
        "product_ids": [line.product_id for line in order.lines],
        "quantities": [line.quantity for line in order.lines],
        "prices_minor": [line.unit_price_minor for line in order.lines],
    }


def _history_row(change: StatusChange) -> dict[str, object]:
    return {f"row_{name}": getattr(change, name) for name in _HISTORY}

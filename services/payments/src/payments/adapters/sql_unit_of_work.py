"""The unit of work over a database connection, and its repositories of gateway events and payable orders."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from sqlalchemy import Row, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from payments.adapters.sql_payments import SqlLedger, SqlPayments, SqlRefunds
from payments.adapters.tables import (
    counters,
    gateway_events,
    idempotency_keys,
    inbox,
    outbox,
    payable_orders,
    transactions,
)
from payments.domain.errors import EventKnownError, StatusChangedError
from payments.domain.gateway_event import (
    EventStatus,
    GatewayEvent,
    Judgement,
    PayableOrder,
    PayableStatus,
    Terms,
)
from payments.service.use_case import KnownEvent
from servicekit.sql.rows import row_of, value_of
from servicekit.sql.tables import SqlInbox, SqlTransactionRows

_ADD_EVENT = insert(gateway_events)
_FIND_EVENT = select(gateway_events).where(gateway_events.c.event_id == bindparam("wanted_id"))
_REJECTED = (
    select(gateway_events)
    .where(gateway_events.c.status == EventStatus.REFUSED)
    .order_by(gateway_events.c.received_at_ms.desc(), gateway_events.c.event_id)
    .limit(bindparam("rows_max"))
)


class SqlGatewayEvents:
    """Implements `GatewayEvents`.

    The events of the gateway in SQL; the primary key is the event's id, so that one event is carried out once. Rows
    stay for ever: the gateway may repeat an event after any time.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def find(self, event_id: str) -> KnownEvent | None:
        row = (await self._connection.execute(_FIND_EVENT, {"wanted_id": event_id})).one_or_none()
        return None if row is None else _known(row)

    async def add(self, known: KnownEvent) -> None:
        row = row_of(known.event, received_at_ms=known.received_at_ms, **row_of(known.judgement))
        try:
            await self._connection.execute(_ADD_EVENT, row)
        except IntegrityError as error:
            raise EventKnownError(known.event.event_id) from error

    async def count_by_status(self) -> dict[EventStatus, int]:
        return await counters.of_each(self._connection, "gateway-events/", EventStatus)

    async def rejected(self, limit: int) -> list[KnownEvent]:
        return [_known(row) for row in await self._connection.execute(_REJECTED, {"rows_max": limit})]


def _known(row: Row[tuple[object, ...]]) -> KnownEvent:
    return KnownEvent(value_of(GatewayEvent, row), value_of(Judgement, row), row.received_at_ms)


_ADD_ORDER = insert(payable_orders)
_FIND_ORDER = select(payable_orders).where(payable_orders.c.order_id == bindparam("wanted_id"))
_FIND_ALL = select(payable_orders).where(payable_orders.c.order_id.in_(bindparam("wanted_ids", expanding=True)))
_TERMS = tuple(field.name for field in fields(Terms))
_CHANGE = (
    update(payable_orders)
    .where(payable_orders.c.order_id == bindparam("wanted_id"), payable_orders.c.status == bindparam("old_status"))
    .values({name: bindparam(name) for name in ("status", "traceparent", *_TERMS)})
)


class SqlPayableOrders:
    """Implements `PayableOrdersTable`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def find(self, order_id: str) -> PayableOrder | None:
        row = (await self._connection.execute(_FIND_ORDER, {"wanted_id": order_id})).one_or_none()
        return None if row is None else _order(row)

    async def find_all(self, order_ids: Collection[str]) -> dict[str, PayableOrder]:
        rows = await self._connection.execute(_FIND_ALL, {"wanted_ids": list(order_ids)})
        return {row.order_id: _order(row) for row in rows}

    async def add(self, order: PayableOrder) -> None:
        try:
            await self._connection.execute(_ADD_ORDER, {"order_id": order.order_id} | _values(order))
        except IntegrityError as error:
            raise StatusChangedError("order", order.order_id) from error

    async def change(self, old_status: PayableStatus, order: PayableOrder) -> bool:
        parameters = {"wanted_id": order.order_id, "old_status": old_status} | _values(order)
        result = await self._connection.execute(_CHANGE, parameters)
        return result.rowcount == 1


def _order(row: Row[tuple[object, ...]]) -> PayableOrder:
    return value_of(PayableOrder, row, terms=None if row.buyer_id is None else value_of(Terms, row))


def _values(order: PayableOrder) -> dict[str, Any]:
    terms = row_of(order.terms) if order.terms is not None else dict.fromkeys(_TERMS)
    return row_of(order, without=frozenset({"order_id", "terms"}), **terms)


class SqlUnitOfWork:
    """Implements `UnitOfWork`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.payments = SqlPayments(connection)
        self.refunds = SqlRefunds(connection)
        self.ledger = SqlLedger(connection)
        self.gateway_events = SqlGatewayEvents(connection)
        self.payable_orders = SqlPayableOrders(connection)
        self.keys = idempotency_keys.of(connection)
        self.transactions = SqlTransactionRows(transactions, connection)
        self.inbox = SqlInbox(inbox, connection)
        self.outbox = outbox.of(connection)

    async def commit(self) -> None:
        await self._connection.commit()

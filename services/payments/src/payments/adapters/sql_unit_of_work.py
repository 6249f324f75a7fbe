"""The unit of work over a database connection, and its repositories of gateway events and payable orders."""

from __future__ import annotations

from collections.abc import Collection
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
    EventKind,
    EventStatus,
    GatewayEvent,
    Judgement,
    PayableOrder,
    PayableStatus,
    Terms,
)
from payments.service.use_case import KnownEvent
from servicekit.sql.tables import SqlInbox, SqlTransactionRows

_ADD_EVENT = insert(gateway_events)
_FIND_EVENT = select(gateway_events).where(gateway_events.c.event_id == bindparam("wanted_id"))
_REFUSED = (
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
        event = known.event
        row = {
            "event_id": event.event_id,
            "kind": event.kind,
            "occurred_at_ms": event.occurred_at_ms,
            "received_at_ms": known.received_at_ms,
            "payment_id": event.payment_id,
            "refund_id": event.refund_id,
            "order_id": event.order_id,
            "amount_minor": event.amount_minor,
            "currency": event.currency,
            "decline_reason": event.decline_reason,
            "status": known.judgement.status,
            "reason": known.judgement.reason,
        }
        try:
            await self._connection.execute(_ADD_EVENT, row)
        except IntegrityError as error:
            raise EventKnownError(event.event_id) from error

    async def count_by_status(self) -> dict[EventStatus, int]:
        return await counters.of_each(self._connection, "gateway-events/", EventStatus)

    async def refused(self, limit: int) -> list[KnownEvent]:
        return [_known(row) for row in await self._connection.execute(_REFUSED, {"rows_max": limit})]


def _known(row: Row[tuple[object, ...]]) -> KnownEvent:
    event = GatewayEvent(
        event_id=row.event_id,
        kind=EventKind(row.kind),
        occurred_at_ms=row.occurred_at_ms,
        payment_id=row.payment_id,
        order_id=row.order_id,
        amount_minor=row.amount_minor,
        currency=row.currency,
        decline_reason=row.decline_reason,
        refund_id=row.refund_id,
    )
    return KnownEvent(event, Judgement(EventStatus(row.status), row.reason), row.received_at_ms)


_ADD_ORDER = insert(payable_orders)
_FIND_ORDER = select(payable_orders).where(payable_orders.c.order_id == bindparam("wanted_id"))
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

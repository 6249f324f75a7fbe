"""The events of the gateway in SQL; the primary key is the event's id, so that one event is carried out once. Rows stay
for ever: the gateway may repeat an event after any time."""

from __future__ import annotations

from sqlalchemy import Row, bindparam, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from payments.adapters.tables import counters, gateway_events
from payments.domain.errors import EventKnownError
from payments.domain.gateway_event import EventKind, EventStatus, GatewayEvent, Judgement
from payments.service.unit_of_work import KnownEvent

_ADD = insert(gateway_events)
_FIND = select(gateway_events).where(gateway_events.c.event_id == bindparam("wanted_id"))
_REFUSED = (
    select(gateway_events)
    .where(gateway_events.c.status == EventStatus.REFUSED)
    .order_by(gateway_events.c.received_at_ms.desc(), gateway_events.c.event_id)
    .limit(bindparam("rows_max"))
)


class SqlGatewayEvents:
    """Implements `GatewayEvents`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def find(self, event_id: str) -> KnownEvent | None:
        row = (await self._connection.execute(_FIND, {"wanted_id": event_id})).one_or_none()
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
            await self._connection.execute(_ADD, row)
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

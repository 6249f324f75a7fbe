"""Webhooks in SQL: a row for each event, sent or not, so that nothing that was decided is forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, exists, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sandbox_gateway.adapters.tables import webhooks
from sandbox_gateway.domain.failures import Delivery
from sandbox_gateway.domain.webhook import Event
from sandbox_gateway.service.unit_of_work import Attempt, WaitingWebhook

ERROR_LENGTH_MAX = 500

_ADD = insert(webhooks)
_earlier = webhooks.alias("earlier")
_earlier_was_not_taken = exists().where(
    _earlier.c.charge_id == webhooks.c.charge_id,
    _earlier.c.webhook_id < webhooks.c.webhook_id,
    _earlier.c.copies_sent == 0,
    _earlier.c.copies_wanted > 0,
)
_NEXT_DUE = (
    select(
        webhooks.c.webhook_id,
        webhooks.c.event_id,
        webhooks.c.body,
        webhooks.c.attempts,
        webhooks.c.next_attempt_at_ms,
        webhooks.c.traceparent,
    )
    .where(
        webhooks.c.copies_sent < webhooks.c.copies_wanted,
        or_(webhooks.c.holds_order.is_(False), ~_earlier_was_not_taken),
    )
    .order_by(webhooks.c.next_attempt_at_ms, webhooks.c.webhook_id)
    .limit(bindparam("rows_max"))
)
_RECORD = (
    update(webhooks)
    .where(
        webhooks.c.webhook_id == bindparam("wanted_id"),
        webhooks.c.copies_sent + bindparam("taken") <= webhooks.c.copies_wanted,
    )
    .values(
        copies_sent=webhooks.c.copies_sent + bindparam("taken"),
        attempts=webhooks.c.attempts + 1,
        next_attempt_at_ms=bindparam("new_next_attempt_at_ms"),
        last_error=bindparam("new_last_error"),
    )
)


class SqlWebhooks:
    """Implements `Webhooks`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, event: Event, delivery: Delivery, traceparent: str | None) -> None:
        row = {
            "event_id": event.event_id,
            "charge_id": event.charge_id,
            "refund_id": event.refund_id,
            "type": event.type,
            "body": event.body,
            "created_at_ms": event.occurred_at_ms,
            "copies_wanted": delivery.copies,
            "copies_sent": 0,
            "attempts": 0,
            "next_attempt_at_ms": event.occurred_at_ms + delivery.wait_ms,
            "holds_order": delivery.holds_order,
            "traceparent": traceparent,
        }
        await self._connection.execute(_ADD, row)

    async def next_due(self, limit: int) -> list[WaitingWebhook]:
        rows = await self._connection.execute(_NEXT_DUE, {"rows_max": limit})
        return [
            WaitingWebhook(
                row.webhook_id, row.event_id, row.body, row.attempts, row.next_attempt_at_ms, row.traceparent
            )
            for row in rows
        ]

    async def record(self, attempts: Sequence[Attempt]) -> None:
        rows = [
            {
                "wanted_id": attempt.webhook_id,
                "taken": int(attempt.error is None),
                "new_next_attempt_at_ms": attempt.next_attempt_at_ms,
                "new_last_error": None if attempt.error is None else attempt.error[:ERROR_LENGTH_MAX],
            }
            for attempt in attempts
        ]
        await self._connection.execute(_RECORD, rows)

"""Taking note of what the gateway tells by its webhook (RELIABILITY.md (d), row 1).

Invariants: an event id is taken note of once and for ever, in the unit that carries the event out; what contradicts the
payment is kept as REFUSED and changes nothing, and it is answered like any other: a repetition would mend nothing.
"""

from __future__ import annotations

import structlog

from payments.domain.errors import EventKnownError, StatusChangedError
from payments.domain.gateway_event import EventKind, EventStatus, GatewayEvent, judge
from payments.domain.payment import Payment
from payments.domain.refund import Refund
from payments.service.bookkeeper import Bookkeeper
from payments.service.payment_trace import in_trace_of
from payments.service.settlement import ATTEMPTS_MAX
from payments.service.unit_of_work import Units

RECEIVE_EVENT = "receive event"  # the name of its span
NO_REASON = "the gateway gave no reason"

log = structlog.get_logger(__name__)


class ReceiveEvent:
    """The use case behind POST /webhooks/gateway; an event may come twice, late, and in any order."""

    def __init__(self, units: Units, bookkeeper: Bookkeeper) -> None:
        self._units = units
        self._bookkeeper = bookkeeper

    async def __call__(self, event: GatewayEvent) -> EventStatus:
        """What became of the event, now or when it came first.

        Raises StorageUnavailableError and StatusChangedError: the gateway has to deliver it again then.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self._receive(event)
            except (StatusChangedError, EventKnownError):
                continue  # somebody else was faster: look again
        raise StatusChangedError("payment", event.payment_id)

    async def _receive(self, event: GatewayEvent) -> EventStatus:
        async with self._units.reading() as unit:
            known = await unit.gateway_events.find(event.event_id)
            payment = await unit.payments.find(event.payment_id)
            refund = None if event.refund_id is None else await unit.refunds.find(event.refund_id)
        if known is not None:
            return known.judgement.status
        judgement = judge(event, payment, refund)
        if payment is not None and judgement.status is EventStatus.HANDLED:
            with in_trace_of(payment, RECEIVE_EVENT, refund):
                await self._carry_out(event, payment, refund)
            return judgement.status
        await self._bookkeeper.noted(event, judgement)
        if judgement.status is EventStatus.REFUSED:
            log.error(
                "an event of the gateway was refused",
                event_id=event.event_id,
                kind=event.kind,
                payment_id=event.payment_id,
                reason=judgement.reason,
            )
        return judgement.status

    async def _carry_out(self, event: GatewayEvent, payment: Payment, refund: Refund | None) -> None:
        if refund is not None:
            await self._bookkeeper.refunded(payment, refund, event.occurred_at_ms, event)
        elif event.kind is EventKind.CHARGE_CAPTURED:
            await self._bookkeeper.captured(payment, event.occurred_at_ms, event)
        else:
            await self._bookkeeper.declined(payment, event.decline_reason or NO_REASON, event.occurred_at_ms, event)

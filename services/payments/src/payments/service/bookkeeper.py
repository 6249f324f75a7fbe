"""The bookkeeper: writes down that money moved, or never will, and tells it. Whoever learns of it, by an answer of the
gateway, a question or a webhook, comes here.

    status by compare-and-set + history + ledger posting + the event, if one told it + message: one unit, or nothing

Invariants: a payment has one capture posting at most, whatever tells of it, how often and in which order; a change is
told by exactly one message, through the queue or, while that is away, through the outbox.
"""

from __future__ import annotations

import structlog

from osenv import Clock
from payments.domain.errors import OrdersUnavailableError, StatusChangedError
from payments.domain.gateway_event import EventStatus, GatewayEvent, Judgement
from payments.domain.ledger import capture_posting, refund_posting
from payments.domain.payment import Payment, StatusChange
from payments.domain.refund import Refund
from payments.service import events
from payments.service.order_holds import OrderHolds
from payments.service.payment_meter import NOT_METERED, PaymentMeter
from payments.service.unit_of_work import KnownEvent, UnitOfWork, Units
from servicekit.outbox import OutboxPublisher

log = structlog.get_logger(__name__)


class Bookkeeper:
    """Each method takes what its caller has read, and the event that told of the change, if it was one.

    All raise StatusChangedError when somebody else has changed the payment since: read it again. EventKnownError when
    another delivery of the same event was faster. StorageUnavailableError. Nothing was written or told then.
    """

    def __init__(
        self,
        units: Units,
        publisher: OutboxPublisher[UnitOfWork],
        clock: Clock,
        holds: OrderHolds,
        meter: PaymentMeter = NOT_METERED,
    ) -> None:
        self._units = units
        self._holds = holds
        self._publisher = publisher
        self._clock = clock
        self._meter = meter

    async def captured(self, payment: Payment, at_ms: int, event: GatewayEvent | None = None) -> Payment:
        """The gateway took the money at `at_ms`. Raises IllegalTransitionError as well."""
        changed, change = payment.captured(at_ms)

        async def write(unit: UnitOfWork) -> None:
            await self._note(unit, event)
            await _change_status(unit, payment, changed, change)
            await unit.ledger.post(capture_posting(changed))

        await self._publisher.publish(events.succeeded(changed), write)
        self._meter.settled(changed, self._clock.wall_ms())
        return changed

    async def declined(
        self, payment: Payment, reason: str, at_ms: int | None = None, event: GatewayEvent | None = None
    ) -> Payment:
        """The gateway said no, at `at_ms` if it said when; the order is let go. Raises IllegalTransitionError too."""
        changed, change = payment.declined(reason, self._clock.wall_ms() if at_ms is None else at_ms)
        async with self._units.writing() as unit:
            await self._note(unit, event)
            await _change_status(unit, payment, changed, change)
            await unit.commit()
        self._meter.settled(changed, self._clock.wall_ms())
        try:
            await self._holds.release(changed)
        except OrdersUnavailableError as error:
            log.info("the hold of an order ends by itself", order_id=changed.order_id, error=str(error))
        return changed

    async def refunded(
        self, payment: Payment, refund: Refund, at_ms: int, event: GatewayEvent | None = None
    ) -> tuple[Payment, Refund]:
        """The gateway gave the refund's money back at `at_ms`. Raises IllegalTransitionError as well."""
        changed, change = payment.refunded(refund.amount_minor, at_ms)
        done = refund.refunded(at_ms)

        async def write(unit: UnitOfWork) -> None:
            await self._note(unit, event)
            if not await unit.refunds.change(refund.status, done):
                raise StatusChangedError("refund", done.refund_id)
            await _change_status(unit, payment, changed, change)
            await unit.ledger.post(refund_posting(done))

        await self._publisher.publish(events.refunded(changed, done), write)
        self._meter.refunded(done)
        return changed, done

    async def refund_failed(self, refund: Refund, failure: str) -> Refund:
        """The gateway has refused the refund; no money moved. Raises IllegalTransitionError as well."""
        return await self._change_refund(refund, refund.failed(failure))

    async def refund_retried(self, refund: Refund) -> Refund:
        """A refund that has failed is to be tried again. Raises IllegalTransitionError as well."""
        return await self._change_refund(refund, refund.retried())

    async def _change_refund(self, refund: Refund, changed: Refund) -> Refund:
        async with self._units.writing() as unit:
            if not await unit.refunds.change(refund.status, changed):
                raise StatusChangedError("refund", refund.refund_id)
            await unit.commit()
        return changed

    async def noted(self, event: GatewayEvent, judgement: Judgement) -> None:
        """The event changed nothing; that it came is remembered."""
        async with self._units.writing() as unit:
            await unit.gateway_events.add(KnownEvent(event, judgement, self._clock.wall_ms()))
            await unit.commit()

    async def _note(self, unit: UnitOfWork, event: GatewayEvent | None) -> None:
        if event is not None:
            await unit.gateway_events.add(KnownEvent(event, Judgement(EventStatus.HANDLED), self._clock.wall_ms()))


async def _change_status(unit: UnitOfWork, payment: Payment, changed: Payment, change: StatusChange) -> None:
    if not await unit.payments.change_status(changed, change, payment.refunded_minor):
        raise StatusChangedError("payment", changed.payment_id)

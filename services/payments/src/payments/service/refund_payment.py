"""Giving money back: orders asks for it when a payment lost against the closing of its order.

Invariants: a payment is refunded once at most, however often that is asked for; a request is taken only once its refund
is recorded, so that from then on the resumer sees to it.
"""

from __future__ import annotations

import structlog

from osenv import Clock
from payments.domain.errors import NotCapturedYetError
from payments.domain.payment_status import ChangeReason, PaymentStatus, next_status
from payments.domain.refund import RefundRequest, refund_of
from payments.service import events
from payments.service.resumer import ResumerWake
from payments.service.settlement import Settlement
from payments.service.unit_of_work import Units
from servicekit.errors import ServiceError

log = structlog.get_logger(__name__)


class RefundPayment:
    """The use case behind the group `refund-handler`; a request may come twice."""

    def __init__(self, units: Units, settlement: Settlement, wake: ResumerWake, clock: Clock) -> None:
        self._units = units
        self._settlement = settlement
        self._wake = wake
        self._clock = clock

    async def __call__(self, request: RefundRequest) -> None:
        """Record the refund and begin it; when this returns the money is back, or the resumer sees to it.

        Raises UnknownPaymentError, NotCapturedYetError, RefundMismatchError, IllegalTransitionError (the payment was
        declined), StatusChangedError and StorageUnavailableError: the request must then be delivered again.
        """
        async with self._units.writing() as unit:
            payment = await unit.payments.get(request.payment_id)
            if payment.status is PaymentStatus.CREATED:
                raise NotCapturedYetError(payment.payment_id)
            refund = refund_of(payment, request, self._clock.wall_ms())
            if payment.status is PaymentStatus.REFUNDED:
                return
            next_status(payment.status, ChangeReason.REFUNDED)
            is_first = await unit.inbox.once(events.REFUND_HANDLER_GROUP, payment.payment_id, refund.requested_at_ms)
            if is_first and await unit.refunds.find(payment.payment_id) is None:
                await unit.refunds.add(refund)
                await unit.commit()
        if not self._settlement.is_held(payment.payment_id):
            await self._settle(payment.payment_id)

    async def _settle(self, payment_id: str) -> None:
        is_finished = False
        try:
            with self._settlement.holding(payment_id):
                await self._settlement.finish_refund(payment_id)
            is_finished = True
        except ServiceError as error:
            log.warning("a refund is left to the resumer", payment_id=payment_id, error=str(error))
        finally:
            if not is_finished:
                self._wake.ring()

"""Giving all the money back: orders asks for it when a payment lost against the closing of its order, and when the
seller cancels an order that was paid.

Invariants: what orders asks for happens once at most, however often it asks; what operators have given back before is
not given back again, and the rest is. A request is taken only once its refund is recorded, so that from then on the
resumer sees to it.
"""

from __future__ import annotations

import structlog

from osenv import Clock
from payments.domain.errors import StatusChangedError
from payments.domain.payment import Payment
from payments.domain.refund import Refund, RefundStatus, WholeRefundRequest, rest_of, whole_refund_id
from payments.service import events
from payments.service.settlement import Settlement
from payments.service.unit_of_work import Units
from servicekit.errors import ServiceError
from servicekit.wake import Wake

log = structlog.get_logger(__name__)


class RefundPayment:
    """The use case behind the group `refund-handler`; a request may come twice."""

    def __init__(self, units: Units, settlement: Settlement, wake: Wake, clock: Clock) -> None:
        self._units = units
        self._settlement = settlement
        self._wake = wake
        self._clock = clock

    async def __call__(self, request: WholeRefundRequest) -> None:
        """Record the refund and begin it; when this returns the money is back, or the resumer sees to it.

        Raises UnknownPaymentError, NotCapturedYetError, RefundMismatchError, IllegalTransitionError (the payment was
        declined), StatusChangedError and StorageUnavailableError: the request must then be delivered again.
        """
        payment, refund = await self._record(request)
        if refund is None or refund.status is not RefundStatus.REQUESTED or self._settlement.is_held(refund.refund_id):
            return
        await begin_refund(refund, payment, self._settlement, self._wake)

    async def _record(self, request: WholeRefundRequest) -> tuple[Payment, Refund | None]:
        async with self._units.writing() as unit:
            payment = await unit.payments.get(request.payment_id)
            now_ms = self._clock.wall_ms()
            rest = rest_of(payment, request, events.REFUND_HANDLER_GROUP, now_ms)
            recorded = await unit.refunds.find(whole_refund_id(payment.payment_id))
            if recorded is not None or rest is None:
                return payment, recorded
            if not await unit.inbox.once(events.REFUND_HANDLER_GROUP, payment.payment_id, now_ms):
                return payment, None
            await unit.refunds.add(rest)
            if not await unit.payments.reserve_refund(payment.payment_id, rest.amount_minor):
                raise StatusChangedError("payment", payment.payment_id)  # an operator has just asked for a part
            await unit.commit()
        return payment, rest


async def begin_refund(refund: Refund, payment: Payment, settlement: Settlement, wake: Wake) -> Refund:
    """Ask the gateway for a recorded refund of `payment`; what does not end here is for the resumer."""
    is_finished = False
    try:
        with settlement.holding(refund.refund_id):
            refund = await settlement.refund(refund, payment)
        is_finished = refund.status is not RefundStatus.REQUESTED
    except ServiceError as error:
        log.warning("a refund is left to the resumer", refund_id=refund.refund_id, error=str(error))
    finally:
        if not is_finished:
            wake.ring()
    return refund

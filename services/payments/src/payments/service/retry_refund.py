"""Trying a refund again that the gateway has refused, because an operator has found out why.

Invariant: the refund keeps its id, so that a gateway that has made it after all makes it no second time; of two that
retry at once one does, and a refund that is not FAILED is answered as it stands.
"""

from __future__ import annotations

import contextlib

from payments.domain.errors import StatusChangedError, UnknownRefundError
from payments.domain.payment import Payment
from payments.domain.refund import Refund, RefundStatus
from payments.service.bookkeeper import Bookkeeper
from payments.service.queries import visible
from payments.service.refund_payment import begin_refund
from payments.service.settlement import Settlement
from payments.service.unit_of_work import Units
from servicekit.auth import Caller
from servicekit.wake import Wake


class RetryRefund:
    """The use case behind POST /payments/{payment_id}/refunds/{refund_id}/retry; calling it again is harmless."""

    def __init__(self, units: Units, bookkeeper: Bookkeeper, settlement: Settlement, wake: Wake) -> None:
        self._units = units
        self._bookkeeper = bookkeeper
        self._settlement = settlement
        self._wake = wake

    async def __call__(self, payment_id: str, refund_id: str, caller: Caller) -> Refund:
        """The refund as far as it came: FAILED again, when the gateway refuses it again.

        Raises UnknownPaymentError, also for a payment that the caller may not see, UnknownRefundError and
        StorageUnavailableError.
        """
        payment, refund = await self._read(payment_id, refund_id, caller)
        if refund.status is not RefundStatus.FAILED:
            return refund
        if not self._settlement.is_held(refund_id):
            with contextlib.suppress(StatusChangedError):
                requested = await self._bookkeeper.refund_retried(refund)
                return await begin_refund(requested, payment, self._settlement, self._wake)
        # Another retry has begun since it was read, or the gateway has told that it was made.
        return (await self._read(payment_id, refund_id, caller))[1]

    async def _read(self, payment_id: str, refund_id: str, caller: Caller) -> tuple[Payment, Refund]:
        async with self._units.reading() as unit:
            payment = await visible(unit, payment_id, caller)
            refund = await unit.refunds.find(refund_id)
        if refund is None or refund.payment_id != payment_id:
            raise UnknownRefundError(refund_id)
        return payment, refund

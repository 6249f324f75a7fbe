"""Giving a part of the money back, or all of it, because an operator asks for it.

Invariants: an operator's key makes at most one refund, whose id follows from the key; the refunds of a payment are
together never more than it took, whoever asks at the same moment: the database counts them. A refused request leaves no
trace, so that its key may be used again.
"""

from __future__ import annotations

from dataclasses import dataclass

from osenv import Clock
from payments.domain.errors import StatusChangedError
from payments.domain.payment import Payment
from payments.domain.refund import Refund, RefundRequest, part_of, refund_id_of_key
from payments.service.queries import visible
from payments.service.refund_payment import begin_refund
from payments.service.settlement import ATTEMPTS_MAX, Settlement
from payments.service.unit_of_work import Units
from servicekit.auth import Caller
from servicekit.errors import KeyReusedError, RequestInFlightError
from servicekit.idempotency import InFlightKeys
from servicekit.wake import Wake


@dataclass(frozen=True, slots=True)
class PartRefunded:
    """The refund as far as it came, REQUESTED being "in progress"; `replayed` if an earlier request made it."""

    refund: Refund
    replayed: bool


class RefundPart:
    """The use case behind POST /payments/{payment_id}/refunds."""

    def __init__(self, units: Units, settlement: Settlement, wake: Wake, clock: Clock) -> None:
        self._units = units
        self._settlement = settlement
        self._wake = wake
        self._clock = clock
        self._in_flight = InFlightKeys()

    async def __call__(self, request: RefundRequest, caller: Caller, key: str) -> PartRefunded:
        """Refund, or answer with what this key of this caller has refunded before.

        Raises UnknownPaymentError, also for a payment that the caller may not see; KeyReusedError,
        RequestInFlightError, RefundTooLargeError, NotCapturedYetError, IllegalTransitionError (the payment was
        declined), StatusChangedError, StorageUnavailableError; nothing has happened then, and nothing will.
        """
        refund_id = refund_id_of_key(caller.subject, key)
        with self._in_flight.holding(caller.subject, key):
            for _ in range(ATTEMPTS_MAX):
                recorded = await self._record(request, caller, key, refund_id)
                if recorded is not None:
                    break
            else:
                raise StatusChangedError("payment", request.payment_id)
            payment, part = recorded
            if part.replayed or self._settlement.is_held(refund_id):
                return part
            refund = await begin_refund(part.refund, payment, self._settlement, self._wake)
            return PartRefunded(refund, replayed=False)

    async def _record(
        self, request: RefundRequest, caller: Caller, key: str, refund_id: str
    ) -> tuple[Payment, PartRefunded] | None:
        """The refund, recorded now or before; None if somebody else has just asked for money of this payment."""
        async with self._units.writing() as unit:
            payment = await visible(unit, request.payment_id, caller)
            earlier = await unit.refunds.find(refund_id)
            if earlier is not None:
                if (earlier.payment_id, earlier.amount_minor, earlier.reason) != (
                    request.payment_id,
                    request.amount_minor,
                    request.reason,
                ):
                    raise KeyReusedError(key)
                return payment, PartRefunded(earlier, replayed=True)
            refund = part_of(payment, request, refund_id, caller.subject, self._clock.wall_ms())
            if not await unit.payments.reserve_refund(payment.payment_id, refund.amount_minor):
                return None
            try:
                await unit.refunds.add(refund)
            except StatusChangedError as error:
                raise RequestInFlightError(key) from error
            await unit.commit()
        return payment, PartRefunded(refund, replayed=False)

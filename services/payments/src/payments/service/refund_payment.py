"""Refunds: of a part, of a whole payment, and tried again."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import structlog

from osenv import Clock
from payments.domain.errors import StatusChangedError, UnknownRefundError
from payments.domain.payment import Payment
from payments.domain.refund import (
    Refund,
    RefundRequest,
    RefundStatus,
    WholeRefundRequest,
    part_of,
    refund_id_of_key,
    rest_of,
    whole_refund_id,
)
from payments.service import events
from payments.service.queries import visible
from payments.service.settlement import ATTEMPTS_MAX, Bookkeeper, Settlement
from payments.service.use_case import Units
from servicekit.auth import Caller
from servicekit.background import WakeUp
from servicekit.errors import KeyReusedError, RequestInFlightError, ServiceError
from servicekit.sql.units import InFlightKeys

log = structlog.get_logger(__name__)


class RefundPayment:
    """The use case behind the group `refund-handler`; a request may come twice.

    Giving all the money back: orders asks for it when a payment lost against the closing of its order, and when the
    seller cancels an order that was paid.

    Invariants: what orders asks for happens once at most, however often it asks; what operators have given back before
    is not given back again, and the rest is. A request is taken only once its refund is recorded, so that from then on
    the resumer sees to it.
    """

    def __init__(self, units: Units, settlement: Settlement, wake: WakeUp, clock: Clock) -> None:
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


async def begin_refund(refund: Refund, payment: Payment, settlement: Settlement, wake: WakeUp) -> Refund:
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
            wake.set()
    return refund


@dataclass(frozen=True, slots=True)
class PartRefunded:
    """The refund as far as it came, REQUESTED being "in progress"; `replayed` if an earlier request made it."""

    refund: Refund
    replayed: bool


class RefundPart:
    """The use case behind POST /payments/{payment_id}/refunds.

    Invariants: an operator's key makes at most one refund, whose id follows from the key; the refunds of a payment are
    together never more than it took, however many are asked for at the same moment: the database counts them. A
    rejected request leaves no trace, so that its key may be used again.
    """

    def __init__(self, units: Units, settlement: Settlement, wake: WakeUp, clock: Clock) -> None:
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
        """The refund, recorded now or before; None if another request has just asked for money of this payment."""
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


class RetryRefund:
    """The use case behind POST /payments/{payment_id}/refunds/{refund_id}/retry; calling it again is harmless.

    Invariant: the refund keeps its id, so that a gateway that has made it after all makes it no second time; of two
    that retry at once one does, and a refund that is not FAILED is answered as it stands.
    """

    def __init__(self, units: Units, bookkeeper: Bookkeeper, settlement: Settlement, wake: WakeUp) -> None:
        self._units = units
        self._bookkeeper = bookkeeper
        self._settlement = settlement
        self._wake = wake

    async def __call__(self, payment_id: str, refund_id: str, caller: Caller) -> Refund:
        """The refund as far as it came: FAILED again, when the gateway rejects it again.

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
        async with self._units.snapshot() as unit:
            payment = await visible(unit, payment_id, caller)
            refund = await unit.refunds.find(refund_id)
        if refund is None or refund.payment_id != payment_id:
            raise UnknownRefundError(refund_id)
        return payment, refund

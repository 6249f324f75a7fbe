"""Paying an order, and keeping up with which orders can be paid.

The intent is recorded, then the gateway is asked to take the money. It may decide at once, or later and tell by its
webhook. A repeated request is answered with what became of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

import telemetry
from osenv import Clock, Rng
from payments.domain.errors import (
    AlreadyPaidError,
    PaymentInProgressError,
    QueueUnavailableError,
    StatusChangedError,
    UnknownOrderError,
)
from payments.domain.gateway_event import PayableOrder
from payments.domain.payment import Payment, PaymentRequest, PaymentStatus, begin
from payments.service import events
from payments.service.settlement import Settlement
from payments.service.use_case import UnitOfWork, Units
from servicekit.background import WakeUp
from servicekit.errors import ServiceError
from servicekit.sql.units import InFlightKeys, KeyClaim, fingerprint

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Paid:
    """The payment as far as it came, CREATED being "in progress"; `replayed` if an earlier request made it."""

    payment: Payment
    replayed: bool


class PayOrder:
    """The use case behind POST /payments.

    Invariants: a buyer's key makes at most one payment; an order has at most one payment that is not DECLINED; no money
    moves before the intent is committed. A rejected request leaves no trace, so that its key may be used again.
    """

    def __init__(
        self,
        units: Units,
        settlement: Settlement,
        wake: WakeUp,
        clock: Clock,
        rng: Rng,
        *,
        is_queue_there: Callable[[], bool],
    ) -> None:
        self._units = units
        self._settlement = settlement
        self._wake = wake
        self._clock = clock
        self._rng = rng
        self._is_queue_there = is_queue_there
        self._in_flight = InFlightKeys()

    async def __call__(self, request: PaymentRequest, key: str) -> Paid:
        """Pay, or answer with what this key of this buyer has paid before. The request's buyer is the caller.

        Raises KeyReusedError, RequestInFlightError, UnknownOrderError, WrongAmountError, WrongCurrencyError,
        OrderClosedError, AlreadyPaidError, PaymentInProgressError, QueueUnavailableError, StorageUnavailableError;
        nothing has happened then, and nothing will.
        """
        payment_id = self._rng.randbytes(16).hex()
        with self._in_flight.holding(request.buyer_id, key), self._settlement.holding(payment_id):
            async with self._units.writing() as unit:
                earlier = await unit.keys.find(request.buyer_id, key)
                if earlier is not None:
                    earlier.require_fingerprint(fingerprint(request))
                    payment = await unit.payments.get(earlier.result_id)
                    return Paid(payment.as_answered(), replayed=True)
                payment = await self._begin(unit, request, key, payment_id)
                await unit.commit()
            return Paid(await self._settle(payment), replayed=False)

    async def _begin(self, unit: UnitOfWork, request: PaymentRequest, key: str, payment_id: str) -> Payment:
        order = await unit.payable_orders.find(request.order_id)
        if order is None:
            raise UnknownOrderError(request.order_id)
        order.check(request)
        live = await unit.payments.live(request.order_id)
        if live is not None:
            if live.status is PaymentStatus.CREATED:
                raise PaymentInProgressError(request.order_id)
            raise AlreadyPaidError(request.order_id)
        if not self._is_queue_there():
            raise QueueUnavailableError("the queue is away, and a payment could not be told; nothing was charged")
        now_ms = self._clock.wall_ms()
        payment, first = begin(payment_id, request, now_ms, order.traceparent)
        await unit.keys.claim(KeyClaim(request.buyer_id, key, fingerprint(request), payment_id), now_ms)
        await unit.payments.add(payment, first)
        return payment

    async def _settle(self, payment: Payment) -> Payment:
        """From here on the intent counts: what goes wrong is for the resumer, and the answer is "in progress"."""
        is_finished = False
        try:
            settled = await self._settlement.charge(payment)
            is_finished = settled.status is not PaymentStatus.CREATED
        except ServiceError as error:
            log.warning("a payment is left to the resumer", payment_id=payment.payment_id, error=str(error))
            return payment
        finally:
            if not is_finished:
                self._wake.set()  # the payment is let go before another task runs
        return settled


class PayableOrders:
    """Keeping up with orders: which can be paid, their buyers and totals; `order-events` tell it."""

    def __init__(self, units: Units, clock: Clock) -> None:
        self._units = units
        self._clock = clock

    async def learn(self, told: PayableOrder) -> PayableOrder:
        """Remember what an event told; returns the order as it is known now.

        Raises StatusChangedError when another process learns of the same order at the same moment.
        """
        told = replace(told, traceparent=telemetry.traceparent())
        async with self._units.writing() as unit:
            known = await unit.payable_orders.find(told.order_id)
            key = f"{told.order_id}/{told.status}"
            is_first = await unit.inbox.once(events.PAYABLE_ORDERS_GROUP, key, self._clock.wall_ms())
            if known is None:
                await unit.payable_orders.add(told)
                await unit.commit()
                return told
            if not is_first:
                return known
            merged = known.merged(told)
            if merged != known:
                if not await unit.payable_orders.change(known.status, merged):
                    raise StatusChangedError("order", told.order_id)
                await unit.commit()
        return merged

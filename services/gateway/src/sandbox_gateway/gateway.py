"""The use cases: the gateway's decisions, and its behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import telemetry
from osenv import Clock
from sandbox_gateway import domain
from sandbox_gateway.domain import (
    BANK_DECLINED,
    NO_FAILURES,
    OVER_THE_LIMIT,
    Book,
    Charge,
    ChargeTerms,
    Delivery,
    Event,
    Failures,
    NotRefundableError,
    OtherTermsError,
    Refund,
    RefundTerms,
    UnknownChargeError,
    UnknownRefundError,
)
from sandbox_gateway.sql import UnitOfWork, Units

# Far above any order, and so low that the book's sums stay within 64 bits.
DECLINES_ABOVE_DEFAULT_MINOR = 10**12


@dataclass(slots=True)
class Behaviour:
    """Only `failures` changes while the gateway runs; it holds for whatever is decided from then on."""

    delay_ms: int = 50
    declines_above_minor: int = DECLINES_ABOVE_DEFAULT_MINOR
    seed: int = 1
    failures: Failures = NO_FAILURES

    def decline_reason(self, terms: ChargeTerms) -> str | None:
        """Why the charge is declined; None if its money is taken."""
        if terms.amount_minor > self.declines_above_minor:
            return OVER_THE_LIMIT
        return BANK_DECLINED if self.failures.declines(self.seed, terms.charge_id) else None

    def delivery(self, event: Event) -> Delivery:
        """How the event is told."""
        return self.failures.delivery(self.seed, event.charge_id, event.event_id)


BATCH_MAX = 64

# Names of spans: each decision is in the trace of its request.
DECIDE_CHARGE = "decide charge"
CARRY_OUT_REFUND = "carry out refund"


class Decisions:
    """Decides whatever is due. `told` is called after a commit that wrote webhooks."""

    def __init__(self, units: Units, behaviour: Behaviour, clock: Clock, told: Callable[[], None]) -> None:
        self._units = units
        self._behaviour = behaviour
        self._clock = clock
        self._told = told

    async def decide_charge(self, unit: UnitOfWork, charge: Charge) -> Charge:
        """The PENDING charge with its decision, unless another task decided it; the caller commits."""
        decided = charge.decided(self._behaviour.decline_reason(charge.terms), self._clock.wall_ms())
        if await unit.charges.decide(decided):
            event = domain.of_charge(decided)
            await unit.webhooks.add(event, self._behaviour.delivery(event), telemetry.traceparent())
        return decided

    async def carry_out(self, unit: UnitOfWork, refund: Refund) -> Refund:
        """The PENDING refund after the money went back, unless another task did it; the caller commits."""
        refunded = refund.refunded(self._clock.wall_ms())
        if await unit.refunds.finish(refunded):
            charge = await unit.charges.find(refund.terms.charge_id)
            if charge is None:
                raise UnknownChargeError(refund.terms.charge_id)
            event = domain.of_refund(refunded, charge.terms.order_id)
            await unit.webhooks.add(event, self._behaviour.delivery(event), telemetry.traceparent())
        return refunded

    async def decide_due(self) -> int | None:
        """Decide some of what is due; returns when the next is. Raises StorageUnavailableError."""
        async with self._units.snapshot() as unit:
            charges = await unit.charges.next_due(BATCH_MAX)
            refunds = await unit.refunds.next_due(BATCH_MAX)
        now_ms = self._clock.wall_ms()
        due_charges = [charge for charge in charges if charge.due_at_ms <= now_ms]
        due_refunds = [refund for refund in refunds if refund.due_at_ms <= now_ms]
        if due_charges or due_refunds:
            async with self._units.writing() as unit:
                for charge in due_charges:
                    with telemetry.joined_span(DECIDE_CHARGE, charge.traceparent):
                        await self.decide_charge(unit, charge)
                for refund in due_refunds:
                    with telemetry.joined_span(CARRY_OUT_REFUND, refund.traceparent):
                        await self.carry_out(unit, refund)
                await unit.commit()
            self._told()
            return now_ms  # there may be more
        moments_ms = [*(charge.due_at_ms for charge in charges), *(refund.due_at_ms for refund in refunds)]
        return min(moments_ms, default=None)


class Gateway:
    """Every method raises StorageUnavailableError. `written` is called after a commit of something new.

    Invariants: an id names one charge or one refund for ever; whatever is answered is committed before.
    """

    def __init__(
        self, units: Units, decisions: Decisions, behaviour: Behaviour, clock: Clock, written: Callable[[], None]
    ) -> None:
        self._units = units
        self._decisions = decisions
        self._behaviour = behaviour
        self._clock = clock
        self._written = written

    async def charge(self, terms: ChargeTerms) -> Charge:
        """The charge with these terms, new or not. Raises OtherTermsError, WrittenMeanwhileError."""
        async with self._units.writing() as unit:
            charge = await unit.charges.find(terms.charge_id)
            if charge is None:
                now_ms = self._clock.wall_ms()
                charge = Charge(terms, now_ms, now_ms + self._behaviour.delay_ms, traceparent=telemetry.traceparent())
                await unit.charges.add(charge)
                if self._behaviour.delay_ms == 0:
                    charge = await self._decisions.decide_charge(unit, charge)
                await unit.commit()
                self._written()
        if charge.terms != terms:
            raise OtherTermsError("charge", terms.charge_id)
        return charge

    async def refund(self, terms: RefundTerms) -> Refund:
        """The refund with these terms, new or not.

        Raises OtherTermsError, NotRefundableError, WrittenMeanwhileError.
        """
        async with self._units.writing() as unit:
            refund = await unit.refunds.find(terms.refund_id)
            if refund is None:
                refund = await self._new_refund(unit, terms)
                await unit.commit()
                self._written()
        if refund.terms != terms:
            raise OtherTermsError("refund", terms.refund_id)
        return refund

    async def find_charge(self, charge_id: str) -> Charge:
        """Raises UnknownChargeError."""
        async with self._units.snapshot() as unit:
            charge = await unit.charges.find(charge_id)
        if charge is None:
            raise UnknownChargeError(charge_id)
        return charge

    async def find_refund(self, refund_id: str) -> Refund:
        """Raises UnknownRefundError."""
        async with self._units.snapshot() as unit:
            refund = await unit.refunds.find(refund_id)
        if refund is None:
            raise UnknownRefundError(refund_id)
        return refund

    async def book(self) -> Book:
        """The sums of everything that ever happened."""
        async with self._units.snapshot() as unit:
            return await unit.book()

    async def _new_refund(self, unit: UnitOfWork, terms: RefundTerms) -> Refund:
        if await unit.charges.find(terms.charge_id) is None:
            raise NotRefundableError(f"there is no charge {terms.charge_id!r} to give money back from")
        now_ms = self._clock.wall_ms()
        refund = Refund(terms, now_ms, now_ms + self._behaviour.delay_ms, traceparent=telemetry.traceparent())
        # Before the money is set aside: of two requests for one refund the second must not look like too much.
        await unit.refunds.add(refund)
        if not await unit.charges.set_aside(terms):
            raise NotRefundableError(
                f"the charge {terms.charge_id!r} has no {terms.amount_minor} {terms.currency} left to give back"
            )
        if self._behaviour.delay_ms == 0:
            refund = await self._decisions.carry_out(unit, refund)
        return refund

"""What the gateway is asked: charges, refunds, and what became of them.

Invariants: an id names one charge or one refund for ever; whatever is answered is committed before.
"""

from __future__ import annotations

from collections.abc import Callable

import telemetry
from osenv import Clock
from sandbox_gateway.domain.charge import Charge, ChargeTerms
from sandbox_gateway.domain.errors import (
    NotRefundableError,
    OtherTermsError,
    UnknownChargeError,
    UnknownRefundError,
)
from sandbox_gateway.domain.refund import Refund, RefundTerms
from sandbox_gateway.service.behaviour import Behaviour
from sandbox_gateway.service.decisions import Decisions
from sandbox_gateway.service.unit_of_work import Book, UnitOfWork, Units


class Gateway:
    """Every method raises StorageUnavailableError. `written` is called after a commit of something new."""

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
        async with self._units.reading() as unit:
            charge = await unit.charges.find(charge_id)
        if charge is None:
            raise UnknownChargeError(charge_id)
        return charge

    async def find_refund(self, refund_id: str) -> Refund:
        """Raises UnknownRefundError."""
        async with self._units.reading() as unit:
            refund = await unit.refunds.find(refund_id)
        if refund is None:
            raise UnknownRefundError(refund_id)
        return refund

    async def book(self) -> Book:
        """The sums of everything that ever happened."""
        async with self._units.reading() as unit:
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

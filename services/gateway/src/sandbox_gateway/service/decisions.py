"""Decisions: a charge is taken or declined, a refund is carried out, each once and together with its webhook."""

from __future__ import annotations

from collections.abc import Callable

import telemetry
from osenv import Clock
from sandbox_gateway.domain import webhook
from sandbox_gateway.domain.charge import Charge
from sandbox_gateway.domain.errors import UnknownChargeError
from sandbox_gateway.domain.refund import Refund
from sandbox_gateway.service.behaviour import Behaviour
from sandbox_gateway.service.unit_of_work import UnitOfWork, Units

BATCH_MAX = 64

# Names of spans: each decision is in the trace of who asked for it.
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
        """The PENDING charge with its decision, unless somebody else decided it; the caller commits."""
        decided = charge.decided(self._behaviour.decline_reason(charge.terms), self._clock.wall_ms())
        if await unit.charges.decide(decided):
            event = webhook.of_charge(decided)
            await unit.webhooks.add(event, self._behaviour.delivery(event), telemetry.traceparent())
        return decided

    async def carry_out(self, unit: UnitOfWork, refund: Refund) -> Refund:
        """The PENDING refund after the money went back, unless somebody else did it; the caller commits."""
        refunded = refund.refunded(self._clock.wall_ms())
        if await unit.refunds.finish(refunded):
            charge = await unit.charges.find(refund.terms.charge_id)
            if charge is None:
                raise UnknownChargeError(refund.terms.charge_id)
            event = webhook.of_refund(refunded, charge.terms.order_id)
            await unit.webhooks.add(event, self._behaviour.delivery(event), telemetry.traceparent())
        return refunded

    async def decide_due(self) -> int | None:
        """Decide some of what is due; returns when the next is. Raises StorageUnavailableError."""
        async with self._units.reading() as unit:
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

"""Keeping up with orders: which can be paid, by whom, and how much; `order-events` tell it."""

from __future__ import annotations

from dataclasses import replace

import telemetry
from osenv import Clock
from payments.domain.errors import StatusChangedError
from payments.domain.gateway_event import PayableOrder
from payments.service import events
from payments.service.unit_of_work import Units


class PayableOrders:
    """The use case behind the group `payable-orders`. Events may come twice and in any order."""

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
